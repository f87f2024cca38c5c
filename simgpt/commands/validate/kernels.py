"""`simgpt validate kernels`: measured kernels beside the kernel model."""

from __future__ import annotations

from pathlib import Path

import click

from simgpt import options, tables


@click.command("kernels")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A CSV file of kernels; without it, the tables that come with simgpt.",
)
@options.answer_options
def command(data: Path | None, as_json: bool, output: Path | None) -> None:
    """Predict measured kernels with the analytic model, by device and op.

    \b
    simgpt validate kernels
    simgpt validate kernels --data kernels.csv --json

    The file's columns are device, op (linear, flash_attention, layernorm, RMSlayernorm, gelu or
    res_add), M, N, K, batch, heads, seq, head_dim, seconds and, if measured, backward_seconds.
    """
    from validation.kernel_validation import validate_kernels

    groups = validate_kernels(data)
    rows = [
        (
            each.device,
            each.op,
            f"{each.rows:,}",
            tables.percent(each.mape),
            tables.percent(each.p95),
            tables.percent(each.bias, sign=True),
        )
        for each in groups
    ]
    columns = ["device", "op", "rows", "mean", "95th percentile", "bias"]
    record = {"groups": [each.as_dict() for each in groups]}
    options.answer(tables.table(columns, rows, left=2), record, as_json=as_json, output=output)
