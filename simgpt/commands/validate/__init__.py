"""`simgpt validate`: predictions beside measurements."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.commands.validate import (
    anchored,
    device,
    goodput,
    kernels,
    memory,
    moe,
    network,
    published,
    seeds,
)
from simgpt.invocation import ran
from simgpt.progress import Ticker
from topologies.exit_status import ExitStatus
from topologies.machine import Machine

if TYPE_CHECKING:
    from validation.host_validation import HostRow


@click.group("validate")
def command() -> None:
    """Compare predictions with measurements.

    \b
    simgpt validate host
    simgpt validate seeds --json
    """


command.add_command(network.command)
command.add_command(device.command)
command.add_command(published.command)
command.add_command(moe.command)
command.add_command(anchored.command)
command.add_command(seeds.command)
command.add_command(kernels.command)
command.add_command(memory.command)
command.add_command(goodput.command)


@command.command("host")
@options.device_option
@options.comparing_options(0.15, "")
def host(
    machine: str | None,
    device: str,
    tolerance: float,
    threads: int,
    timeout_s: float,
    as_json: bool,
    output: Path | None,
) -> None:
    """Predict a fixed set of small steps from calibration alone, run them here, and compare.

    \b
    simgpt validate host
    simgpt validate host -m host.json --json

    Ends with status 4 when the mean absolute error is above the tolerance.
    """
    from executor.launching.devices import check_is_here, device_for
    from executor.launching.launch import require_torch
    from validation.host_validation import mape, most_ranks, too_wide, validate_host

    require_torch()
    given = options.machine_of(machine) if machine is not None else None
    ranks = most_ranks(given) if given else min(os.cpu_count() or 1, 2)
    about: dict[str, Any] = {
        "device": device_for(device, ranks, options.note),
        "threads": threads,
        "timeout_s": timeout_s,
    }
    if given is not None:
        check_is_here(given.device.name, about["device"], given.name)
    with Ticker() as ticker:
        built = given or _calibrated(ranks, about, ticker)
        rows = list(validate_host(built, progress=ticker, **about))
    error = mape([row.error for row in rows])
    record = {"rows": [row.as_dict() for row in rows], "mape": error} | ran()
    options.answer(_rows(rows, error), record, as_json=as_json, output=output)
    if wide := too_wide(built):
        options.note(f"{wide} more steps want more than this machine's {built.devices} ranks")
    if error > tolerance:
        options.note(f"above the tolerance of {tables.percent(tolerance)}")
        raise SystemExit(ExitStatus.OUTSIDE_TOLERANCE)


def _rows(rows: list[HostRow], error: float) -> str:
    shown = [
        (
            row.model,
            str(row.plan),
            tables.seconds(row.measured_s),
            tables.seconds(row.predicted_s),
            tables.percent(row.error, sign=True),
            tables.gib(row.program_bytes),
            tables.gib(row.allocated_bytes),
        )
        for row in rows
    ]
    steps = tables.several(len(rows), "step")
    return "\n\n".join(
        [
            tables.table(
                ["model", "plan", "measured", "predicted", "error", "memory", "allocated"],
                shown,
                left=2,
            ),
            f"mean absolute error {tables.percent(error)} over {steps}",
        ]
    )


@command.command("groups")
@options.answer_options
def groups(as_json: bool, output: Path | None) -> None:
    """Bandwidths of groups that AxoNN publishes, by stride and size, beside those of our graphs.

    \b
    simgpt validate groups
    simgpt validate groups --json
    """
    from topologies.machine_files import load_machine
    from validation.axonn_groups import axonn_group_bandwidths

    found = [
        (name, row)
        for name in ("perlmutter", "frontier")
        for row in axonn_group_bandwidths(load_machine(name))
    ]
    shown = [
        (
            name,
            f"{row.size} ranks, {row.inner} apart",
            *(
                f"{rate / 1e9:.1f} GB/s"
                for rate in (
                    row.published_bytes_per_s,
                    row.nominal_bytes_per_s,
                    row.reached_bytes_per_s,
                )
            ),
            tables.percent(row.share),
        )
        for name, row in found
    ]
    columns = ["machine", "group", "published", "links allow", "we say", "published/links"]
    record = {"rows": [{"machine": name, **asdict(row), "share": row.share} for name, row in found]}
    options.answer(tables.table(columns, shown, left=2), record, as_json=as_json, output=output)


def _calibrated(ranks: int, about: dict[str, Any], ticker: Ticker) -> Machine:
    from executor.calibrating.calibrate import calibrate
    from executor.launching.task_specs import Calibration

    task = Calibration(precisions=("fp32",), **about)
    return options.check_machine(calibrate(task, ranks, ticker, one_rank=True))
