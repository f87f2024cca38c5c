"""`simgpt validate anchored`: published runs anchored to each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpt import options, tables
from simgpt.invocation import ran
from simgpt.progress import Ticker

if TYPE_CHECKING:
    from validation.published.anchored import AnchoredComparison, AnchoredScore

NAME = 30  # characters of a source that its row in a table shows
COLUMNS = ("rows", "blind", "one", "three", "formula", "within", "range", "blind range")
NOTE = (
    "mean errors: blind, with one anchor, with three, of the formula with one; steps within the "
    "anchored range, its median half-width, and that of the blind range"
)
MEASURES = ("blind", "one", "several", "formula", "within", "half_width", "blind_half_width")


@click.command("anchored")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A CSV file of runs; without it, those that come with simgpt.",
)
@click.option("--source", "sources", multiple=True, help="Only sources or ids with this in them.")
@options.answer_options
def command(
    data: Path | None, sources: tuple[str, ...], as_json: bool, output: Path | None
) -> None:
    """Predict published runs, each anchored to the nearest others of its source.

    \b
    simgpt validate anchored
    simgpt validate anchored --source jupiter --json

    Each row is left out in turn and anchored, as --anchor does, to the nearest row of the same
    source, stack and device that is at least one doubling away, then to the nearest three. The
    formula of validate published is anchored to the nearest row likewise. Rows that are held out
    anchor nothing.
    """
    from simulator.uncertainty.anchors import anchored_bins
    from validation.published.anchored import by_difference, compare_anchored, outcomes_of_both

    with Ticker() as ticker:
        outcomes = outcomes_of_both(data, sources, ticker)
    found = compare_anchored(outcomes, anchored_bins())
    if not found.one:
        raise click.UsageError("no two of these rows are of one source, stack and device")
    kinds = {name: part.score for name, part in by_difference(found).items()}
    held = found.chosen(lambda each: each.outcome.held_out)
    kinds |= {"rows held out": held.score} if held.one else {}
    shown = [
        tables.table(["source", *COLUMNS], [*_rows(found.by_source), _means(found)]),
        tables.table(["differs from its anchor in", *COLUMNS], _rows(kinds)),
        tables.paragraph(f"({NOTE})"),
    ]
    record = found.as_dict() | ran()
    options.answer("\n\n".join(shown), record, as_json=as_json, output=output)


def _rows(scores: dict[str, AnchoredScore]) -> list[tuple[str, ...]]:
    return [
        (name[:NAME], str(each.rows), *_figures(each.as_dict())) for name, each in scores.items()
    ]


def _means(found: AnchoredComparison) -> tuple[str, ...]:
    means = {name: found.mean_of_sources(name) for name in MEASURES}
    return ("mean of sources", str(len(found.one)), *_figures(means))


def _figures(measures: dict[str, float | None]) -> tuple[str, ...]:
    found = (measures[name] for name in MEASURES)
    return tuple("-" if each is None else tables.percent(each) for each in found)
