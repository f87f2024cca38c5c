"""The ranges of anchored steps, from published rows that anchor each other.

`python -m tools.anchored_ranges` prints the table that `simulator/uncertainty` keeps: for each row
that is not held out and each distance of `AT` the rows that are nearest from there on anchor it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence

import click
import numpy as np

from simulator.uncertainty.anchors import (
    DENSE,
    OF_EXPERTS,
    SAME_PLAN,
    Bin,
    Used,
    correction,
)
from simulator.uncertainty.step_range import SHARE, quantile
from topologies.session import in_session
from validation.published.anchored import neighbours, outcomes_of_both
from validation.published.outcome import Outcome

AT = (1.0, 2.0, 3.0, 4.0, 6.0)  # doublings of the table of ranges
FEWEST = 3  # sources of the pairs with the same plan
DIGITS = 4


def table_of(outcomes: Sequence[Outcome]) -> list[Bin]:
    """The ranges of anchored steps of some rows by distance, and of those whose nearest anchor has
    the same plan where they are of at least `FEWEST` sources. A nearer bin is never wider than one
    farther away: where few pairs say otherwise, the farther one is taken as wide."""
    found: list[Bin] = []
    for kind in (DENSE, OF_EXPERTS):
        experts = kind == OF_EXPERTS
        rows = [each for each in outcomes if each.place and each.place.experts == experts]
        rows = [each for each in rows if not each.held_out]
        found += _bins(kind, rows, 1, lambda used: True)
        found += _bins(kind + SAME_PLAN, rows, FEWEST, lambda used: not used[0].distance.plan)
    return found


def _bins(
    kind: str,
    rows: Sequence[Outcome],
    fewest: int,
    counts: Callable[[Sequence[Used]], bool],
) -> Iterator[Bin]:
    """A kind's bins of rows whose anchors count, from the sources that there must be at least."""
    low = high = 0.0
    for least in AT:
        own = _residuals(rows, least, counts)
        sources = len({source for source, _ in own})
        if sources >= fewest:
            tenth, ninetieth = (_percentile(own, q) for q in ((1 - SHARE) / 2, (1 + SHARE) / 2))
            low, high = min(low, tenth), max(high, ninetieth)
            yield Bin(kind, least, low, high, len(own), sources)


def _residuals(
    rows: Sequence[Outcome], least: float, counts: Callable[[Sequence[Used]], bool]
) -> list[tuple[str, float]]:
    """Source and logarithm of measured over anchored step of rows whose nearest anchors from a
    distance on lie less than a doubling farther, and count."""
    found = []
    for outcome, near in neighbours(rows, least):
        used = tuple(each.used for each in near)
        if used[0].distance.total < least + 1 and counts(used):
            assert outcome.measured_s
            assert outcome.predicted_s
            residual = math.log(outcome.measured_s / outcome.predicted_s) - correction(used)
            found.append((outcome.run.source, residual))
    return found


def _percentile(own: Sequence[tuple[str, float]], share: float) -> float:
    """A percentile of residuals in which each source weighs alike."""
    ordered = sorted(own, key=lambda each: each[1])
    counts = {source: sum(name == source for name, _ in own) for source, _ in own}
    weights = np.array([1 / counts[source] for source, _ in ordered])
    return quantile(np.array([residual for _, residual in ordered]), weights, share)


def table_text(bins: Sequence[Bin]) -> str:
    """The table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Bin._fields)
    for each in bins:
        writer.writerow(
            [f"{cell:.{DIGITS}g}" if isinstance(cell, float) else cell for cell in each]
        )
    return text.getvalue()


@click.command()
@in_session
def main() -> None:
    """Print the table of ranges."""
    print(table_text(table_of(outcomes_of_both())), end="")


if __name__ == "__main__":
    main()
