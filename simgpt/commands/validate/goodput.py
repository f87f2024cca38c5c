"""`simgpt validate goodput`: published effective training times beside predicted ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpt import options, tables
from simgpt.invocation import ran

if TYPE_CHECKING:
    from validation.goodput import GoodputRow


@click.command("goodput")
@options.answer_options
def command(as_json: bool, output: Path | None) -> None:
    """Predict how much of published training runs was training, and what failures cost them.

    \b
    simgpt validate goodput
    simgpt validate goodput --json

    Each row has the inputs that its source gives, nothing fitted. Where assumptions decide the
    result the row says what is missing, and no error is counted. validation/data/goodput.toml has
    every input with where it is from.
    """
    from validation.goodput import GOAL, validate_goodput

    rows = validate_goodput()
    counted = [row for row in rows if row.is_counted]
    shares = [abs(row.difference) for row in counted if row.unit == "%"]
    mean = sum(shares) / len(shares)
    within = sum(abs(row.difference) <= GOAL for row in counted)
    record = {"rows": [row.as_dict() for row in rows], "mean_difference": mean, "within": within}
    text = f"{_described(rows)}\n\n{_summary(rows, mean, within, GOAL)}"
    options.answer(text, record | ran(), as_json=as_json, output=output)


def _described(rows: Sequence[GoodputRow]) -> str:
    columns = ["row", "figure", "inputs", "published", "predicted", "difference"]
    shown = [
        (
            row.id,
            f"{row.kind}, {row.unit}",
            _inputs(row),
            f"{'>' if row.at_least else ''}{row.published:,.4g}",
            f"{row.predicted:,.4g}",
            _difference(row),
        )
        for row in rows
    ]
    missing = [tables.paragraph(f"{row.id}: {row.open}", indent="  ") for row in rows if row.open]
    return tables.table(columns, shown, left=3) + "\n\nno error is counted:\n" + "\n".join(missing)


def _inputs(row: GoodputRow) -> str:
    assumed = f", {len(row.assumed)} assumed" if row.assumed else ""
    return f"{len(row.given)} given{assumed}"


def _difference(row: GoodputRow) -> str:
    if not row.is_counted:
        return "-"
    if row.at_least and not row.difference:
        return "holds"
    return f"{100 * row.difference:+.1f} {'points' if row.unit == '%' else '%'}"


def _summary(rows: Sequence[GoodputRow], mean: float, within: int, goal: float) -> str:
    counted = sum(row.is_counted for row in rows)
    return (
        f"{within} of {counted} figures whose inputs suffice within {100 * goal:g} points or %; "
        f"effective times off by {100 * mean:.1f} points on average"
    )
