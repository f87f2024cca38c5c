"""How far the ranges of predicted steps can be relied on: `python -m tools.reliability FILE`.

For each share from one in ten to nineteen in twenty, how many of the measured steps fall into the
ranges that are to hold that share, each source predicted from all others; and each source's
measured steps over predicted ones beside the range that all others give.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import click

from simulator.uncertainty.step_range import (
    SHARE,
    PublishedResiduals,
    Run,
    published_residuals,
)
from topologies.files.writing import figure_bytes, write_whole
from topologies.records import record

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
NAME = 42  # characters of a source that the plot shows
Row = tuple[str, Run, float]


@record(slots=False)
class SourceRange:
    """Measured over predicted steps of a source, and the range that the others give: the median of
    its rows' ends."""

    source: str
    ratios: tuple[float, ...]
    low: float
    high: float


def reliability(
    known: PublishedResiduals, shares: Sequence[float] = SHARES
) -> list[tuple[float, float]]:
    """For each share the one that is covered, as the mean over sources."""
    return [(share, _covered(known, share)) for share in shares]


def _covered(known: PublishedResiduals, share: float) -> float:
    within: dict[str, list[bool]] = {}
    for source, run, residual in known.rows:
        low, high = _range(known, source, run, share)
        within.setdefault(source, []).append(low <= math.exp(residual) <= high)
    return statistics.fmean(statistics.fmean(each) for each in within.values())


def _range(
    known: PublishedResiduals, source: str, run: Run, share: float = SHARE
) -> tuple[float, float]:
    found = known.range_of(1.0, run, without=source, share=share)
    return found.low_s, found.high_s


def source_ranges(known: PublishedResiduals) -> list[SourceRange]:
    """Each source with its range, from the one that is predicted too slow to the one too fast."""
    rows: dict[str, list[Row]] = {}
    for row in known.rows:
        rows.setdefault(row[0], []).append(row)
    found = []
    for source, own in rows.items():
        ends = [_range(known, source, run) for _, run, _ in own]
        low, high = (statistics.median(end[at] for end in ends) for at in (0, 1))
        found.append(SourceRange(source, tuple(math.exp(each[2]) for each in own), low, high))
    return sorted(found, key=lambda each: statistics.median(each.ratios))


def draw(known: PublishedResiduals, path: Path) -> None:
    """Draw both."""
    from matplotlib.figure import Figure

    sources = source_ranges(known)
    figure = Figure(figsize=(11, 0.26 * len(sources) + 1.6), layout="constrained")
    curve, ratios = figure.subplots(1, 2, width_ratios=[1, 1.6])
    shares = reliability(known)
    curve.plot([0, 100], [0, 100], color="#999999", linewidth=1, linestyle="--")
    asked, covered = ([100 * each[at] for each in shares] for at in (0, 1))
    curve.plot(asked, covered, marker="o", color="#1f6f8b")
    curve.set(xlabel="share that the range is to hold (%)", ylabel="measured steps within (%)")
    curve.set(xlim=(0, 100), ylim=(0, 100), title="Each source predicted from all others")
    for at, each in enumerate(sources):
        ratios.plot([each.low, each.high], [at, at], color="#9cc5d3", linewidth=7, zorder=1)
        ratios.plot(each.ratios, [at] * len(each.ratios), ".", color="#1c2b33", markersize=4)
    ratios.axvline(1, color="#999999", linewidth=1, linestyle="--")
    ratios.set_yticks(range(len(sources)), [_short(each.source) for each in sources], fontsize=8)
    ratios.set(xlabel="measured over predicted step", title=f"Runs, and their range of {SHARE:.0%}")
    write_whole(path, figure_bytes(figure, path.suffix.lstrip("."), dpi=110))


def _short(source: str) -> str:
    name = source.partition(" (")[0]
    return name if len(name) <= NAME else f"{name[: NAME - 1].rstrip()}…"


@click.command()
@click.argument("file", metavar="FILE.png", type=click.Path(dir_okay=False, path_type=Path))
def main(file: Path) -> None:
    """Draw into the file that is named."""
    known = published_residuals()
    draw(known, file)
    for share, covered in reliability(known):
        print(f"{share:.0%} asked for, {covered:.1%} within")


if __name__ == "__main__":
    main()
