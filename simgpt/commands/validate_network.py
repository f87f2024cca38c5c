"""`simgpt validate network`: measured collectives beside predicted ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from simgpt import options, tables


@click.command("network")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of measured tables; without it, those that come with simgpt.",
)
@click.option("--table", "name", default="", help="Only the table of that name, row by row.")
@options.answer_options
def command(data: Path | None, name: str, as_json: bool, output: Path | None) -> None:
    """Predict published measurements of collectives, table by table.

    \b
    simgpt validate network
    simgpt validate network --table frontier_all_gather_all_gather_3_nccl
    simgpt validate network --data machines.json --json

    Compares the rows of 1 MiB and more. The fit of the machines' curves saw at most half of a
    table's device counts (half of its sizes, where it has one count); the others are held out.
    """
    from validation.network import overall, validate_network

    compared = validate_network(data, name)
    mape = overall(compared)
    found = [each.as_dict() for each in compared]
    record: dict[str, Any] = {"tables": found, "mape": mape}
    text = _overview(found)
    if name and compared[0].points:
        text += "\n" + _rows(compared[0].as_dict())
    if mape is not None:
        text += f"\n\nmean absolute error {tables.percent(mape)}, averaged over the tables compared"
    skipped = [each for each in found if each["reason"]]
    for each in skipped:
        text += f"\n{each['name']}: skipped, {each['reason']}"
    dropped = sum(each["artefacts"] for each in found)
    if dropped:
        text += f"\n{dropped} rows left out: 1 MiB on 128 GCDs and more, the first size timed"
    options.answer(text, record, as_json=as_json, output=output)


def _overview(record: Any) -> str:
    columns = ["table", "machine", "rows", "mean", "median", "worst", "bias", "fitted", "held out"]
    rows = [
        (
            each["name"],
            each["machine"],
            f"{each['rows']}",
            *(_percent(each[key]) for key in ("mape", "median_error", "worst", "bias")),
            *(_percent(each[key]) for key in ("fitted_mape", "heldout_mape")),
        )
        for each in record
        if not each["reason"]
    ]
    return tables.table(columns, rows, left=2) if rows else "no table could be compared"


def _rows(record: dict[str, Any]) -> str:
    columns = ["devices", "bytes", "measured", "predicted", "error", "fitted"]
    rows = [
        (
            f"{point['devices']}",
            f"{point['bytes']:,.0f}",
            tables.seconds(point["measured_s"]),
            tables.seconds(point["predicted_s"]),
            f"{100 * point['error']:+.1f} %",
            "yes" if point["fitted"] else "",
        )
        for point in record["points"]
    ]
    return tables.table(columns, rows, left=0)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
