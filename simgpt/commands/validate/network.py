"""`simgpt validate network`: measured collectives beside predicted ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from simgpt import options, tables
from topologies.exit_status import ExitStatus

EXPLAINED = 0.1  # mean error from which on a table's explanation is given


@click.command("network")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of measured tables; without it, those that come with simgpt.",
)
@click.option("--table", "name", default="", help="Only the table of that name, row by row.")
@click.option("--tolerance", type=options.Number(min=0), help="Largest mean error of a table.")
@options.answer_options
def command(
    data: Path | None, name: str, tolerance: float | None, as_json: bool, output: Path | None
) -> None:
    """Predict published measurements of collectives, table by table.

    \b
    simgpt validate network
    simgpt validate network --table frontier_all_gather_all_gather_3_nccl
    simgpt validate network --data machines.json --json

    Compares the rows of 1 MiB and more. The fit of the machines' curves saw about half of a
    table's device counts (half of its sizes, where it has one count; its only row, where it has
    one); the others are held out, and have a mean of their own. Ends with status 4 where a
    --tolerance is given and a table's mean error is above it.
    """
    from validation.network_validation import overall, validate_network

    compared = validate_network(data, name)
    found = [each.as_dict() for each in compared]
    apart = [each["heldout_mape"] for each in found if each["heldout_mape"] is not None]
    record: dict[str, Any] = {
        "tables": found,
        "mape": overall(compared),
        "heldout_mape": sum(apart) / len(apart) if apart else None,
    }
    text = _overview(found)
    if name and compared[0].points:
        text += "\n" + _rows(compared[0].as_dict())
    text += "\n\n" + "\n".join(_remarks(record))
    options.answer(text, record, as_json=as_json, output=output)
    over = [each for each in found if tolerance is not None and (each["mape"] or 0) > tolerance]
    if over:
        options.note(f"{tables.several(len(over), 'table')} above {tables.percent(tolerance or 0)}")
        raise SystemExit(ExitStatus.OUTSIDE_TOLERANCE)


def _remarks(record: dict[str, Any]) -> Iterator[str]:
    if record["mape"] is not None:
        mean = tables.percent(record["mape"])
        yield f"mean absolute error {mean}, averaged over the tables compared"
    if record["heldout_mape"] is not None:
        yield f"{tables.percent(record['heldout_mape'])} on the rows that the fit did not see"
    for each in record["tables"]:
        if each["reason"]:
            yield f"{each['name']}: skipped, {each['reason']}"
    for each in record["tables"]:
        if each["explanation"] and (each["mape"] or 0) > EXPLAINED:
            yield f"{each['name']}: {tables.percent(each['mape'])}, {each['explanation']}"
    dropped = sum(each["artefacts"] for each in record["tables"])
    if dropped:
        yield f"{dropped} rows left out: 1 MiB on 128 GCDs and more, the first size timed"


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
