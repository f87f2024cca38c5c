"""What a comparison says first, how its ranges hold by distance, and what changed since another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simgpt import tables

if TYPE_CHECKING:
    from validation.published.comparison import Comparison
    from validation.published.coverage import Coverage
    from validation.published.outcome import Outcome

NAME = 44  # characters of a source that its row in a table shows


def first_lines(report: Comparison, anchored: Mapping[str, float | None]) -> str:
    """The error over all sources, blind and anchored, the order of near plans, and the score of the
    ranges."""
    lines = []
    if report.weighted_error is not None:
        lines.append(
            f"|ln(predicted / measured)| {report.weighted_error:.3f}, mean over sources weighed by "
            "the root of their rows"
        )
    if anchored.get("one") is not None:
        rows = {name: tables.percent(value or 0.0) for name, value in anchored.items()}
        lines.append(
            f"with one measured step of the same source {rows['one']}, with three {rows['several']}"
            f", where blind it is {rows['blind']}: means of the sources with several runs"
        )
    order = report.pair_order
    if order is not None:
        lines.append(
            f"plans of one question 5 to 20 % apart: {tables.percent(order.share)} of the pairs in "
            f"the right order, mean of {tables.several(order.questions, 'question')} with "
            f"{tables.several(order.pairs, 'pair')}"
        )
    found = report.coverage
    if found.sources:
        lines.append(
            f"interval score of the 80 % ranges {found.interval_score:.3f} (in ln; the less, the "
            "better)"
        )
    return "\n".join(lines)


def anchored_errors(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """The means over sources of the blind and the anchored errors of rows that have an anchor."""
    from simulator.uncertainty.anchors import anchored_bins
    from validation.published.anchored import compare_anchored

    found = compare_anchored(outcomes, anchored_bins())
    return {name: found.mean_of_sources(name) for name in ("blind", "one", "several")}


def distances_table(found: Coverage) -> str:
    """How the ranges hold near published runs and far from them."""
    columns = ["distance to the nearest run", "rows", "sources", "within", "half-width"]
    rows = [
        (
            f"{each.least:g} and more" if each.most > 99 else f"{each.least:g} to {each.most:g}",
            f"{each.rows}",
            f"{each.sources}",
            tables.percent(each.share),
            tables.percent(each.half_width),
        )
        for each in found.by_distance
    ]
    return tables.table(columns, rows)


def stored(path: Path | None) -> dict[str, float] | None:
    """The errors of a stored comparison's rows, by id."""
    from validation.published.scores import stored_errors

    return None if path is None else stored_errors(path)


def changes_table(outcomes: Sequence[Outcome], before: Mapping[str, float] | None) -> str:
    """How each source's error changed against a stored comparison; "" without one."""
    from validation.published.scores import changes

    if before is None:
        return ""
    found = changes(outcomes, before)
    if not found:
        return "the stored comparison has no scored row of these"
    columns = ["source", "rows of both", "before", "now", "change"]
    rows = [
        (
            name[:NAME],
            f"{each.rows}",
            f"{each.before:.3f}",
            f"{each.after:.3f}",
            f"{each.after - each.before:+.3f}",
        )
        for name, each in found.items()
    ]
    return tables.table(columns, rows)
