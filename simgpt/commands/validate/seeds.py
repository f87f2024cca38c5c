"""`simgpt validate seeds`: the two papers that set the scope of simgpt, figure by figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpt import options, tables
from simgpt.invocation import ran
from simgpt.progress import Ticker

if TYPE_CHECKING:
    from validation.seeds import SeedRow

WORTH = 0.02  # of a step: a part below is not named
PARTS = 3


@click.command("seeds")
@click.option(
    "--only", "words", multiple=True, metavar="WORD", help="Only rows with this in their ids."
)
@options.answer_options
def command(words: tuple[str, ...], as_json: bool, output: Path | None) -> None:
    """Predict what the papers on AxoNN (SC24) and on Frontier (ORNL) published, nothing fitted.

    \b
    simgpt validate seeds
    simgpt validate seeds --only ornl --json

    What a paper says of a run stands as published; what it does not say is a set of candidates, of
    which the fastest that fits is predicted. The range holds the others that may have run, and the
    range of the prediction itself where published runs of the same software give one.
    validation/data/seeds.toml has that rule, the candidates, and each published figure's source.
    """
    from validation.host_validation import mape
    from validation.seeds import validate_seeds

    with Ticker() as ticker:
        rows = validate_seeds(words, ticker)
    errors = [row.error for row in rows if row.error is not None]
    error = mape(errors) if errors else None
    record = {"rows": [row.as_dict() for row in rows], "mape": error} | ran()
    options.answer(_described(rows, error), record, as_json=as_json, output=output)


def _described(rows: Sequence[SeedRow], error: float | None) -> str:
    columns = ["row", "figure is", "unit", "published", "predicted", "low", "high"]
    shown = [
        (
            row.id,
            row.certainty,
            row.unit,
            *map(_number, (row.published, row.predicted, row.low, row.high)),
        )
        for row in rows
    ]
    known = [row.within for row in rows if row.within is not None]
    said = f"{sum(known)} of {tables.several(len(known), 'published figure')} within the range"
    without = sum(row.within is None and row.published is not None for row in rows)
    said += f"; {without} without a range" if without else ""
    if error is not None:
        steps = sum(row.error is not None for row in rows)
        mean = tables.percent(error)
        said += f"\nmean absolute error {mean} over {tables.several(steps, 'published step')}"
    return "\n\n".join([tables.table(columns, shown, left=3), *_steps(rows), said])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def _steps(rows: Sequence[SeedRow]) -> list[str]:
    """Each predicted step once: what ran, of how many candidates, and where its time goes."""
    steps = {str(row.step): row for row in reversed(rows) if row.step is not None}
    shown = [
        (row.id, f"{plan}, batch {plan.batch}", _parts(row), f"{row.candidates}")
        for row, plan in ((row, row.step.plan) for row in reversed(steps.values()) if row.step)
    ]
    columns = ["row", "plan", "time goes to", "candidates"]
    return [tables.table(columns, shown, left=3)] if shown else []


def _parts(row: SeedRow) -> str:
    total = sum(row.breakdown_s.values())
    parts = sorted(row.breakdown_s.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {s / total:.0%}" for name, s in parts[:PARTS] if s > WORTH * total)
