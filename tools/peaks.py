"""What published runs needed over their predicted peaks, by which predictions get their P(fits).

`python -m tools.peaks [FILE …]` prints the table that `simulator/uncertainty` keeps: of
Megatron-LM's tests and of the published runs that say their peak, and of the runs in further files
with the columns of either, or of moe_cp_runs.csv. With `--likelihood` it prints instead how likely
the peaks of each source are, predicted from those of all others, under several blurs.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import click
import numpy as np

from simulator.uncertainty.fitting import MeasuredPeak, MeasuredPeaks, measured_peaks
from topologies.session import in_session
from validation.memory.memory_validation import MemoryRow, validate_memory

COLUMNS = ("source", "stack", "stack_family", "experts", "measure", "need")
DIGITS = 4
BLURS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2)
STEP = 0.01  # of logarithms, over which a density is taken


def table(rows: Sequence[MemoryRow]) -> str:
    """The rows as CSV, one for each different question of a source, the one with the median need:
    runs that are asked alike say the same."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    alike: dict[tuple[str, str], list[MemoryRow]] = {}
    for row in rows:
        alike.setdefault((row.source, row.question), []).append(row)
    for (source, _), same in alike.items():
        row = sorted(same, key=lambda each: each.need)[len(same) // 2]
        experts = "yes" if row.kind.experts else "no"
        words = [source, row.kind.stack, row.kind.stack_family, experts, row.measure]
        writer.writerow([*words, f"{row.need:.{DIGITS}f}"])
    return text.getvalue()


def likelihood(peaks: Sequence[MeasuredPeak], blur: float) -> float:
    """The mean logarithm of the density at each peak, predicted from the sources but its own, every
    source weighed alike."""
    known = MeasuredPeaks(peaks, blur)
    by_source: dict[str, list[float]] = {}
    errors_of = cache(lambda kind, source: known.errors_of(kind, without=source))
    for row in peaks:
        errors = errors_of(row.kind, row.source)
        low, high = (errors.share_below(row.need + by) for by in (-STEP / 2, STEP / 2))
        density = max((high - low) / STEP, 1e-6)
        by_source.setdefault(row.source, []).append(math.log(density))
    return float(np.mean([np.mean(found) for found in by_source.values()]))


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--likelihood", "likely", is_flag=True, help="How likely the peaks are, by blur.")
@in_session
def main(files: tuple[Path, ...], likely: bool) -> None:
    """Print the table, or the likelihoods."""
    if likely:
        for blur in BLURS:
            print(f"{blur:g}: {likelihood(measured_peaks().rows, blur):.3f}")
        return
    rows = [row for path in (None, *files) for row in validate_memory(path).rows]
    print(table(rows), end="")


if __name__ == "__main__":
    main()
