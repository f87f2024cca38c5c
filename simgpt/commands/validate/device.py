"""`simgpt validate device`: a fixed matrix of steps on the one device at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.progress import Ticker
from topologies.exit_status import ExitStatus
from topologies.machine import Machine

if TYPE_CHECKING:
    from validation.device_validation import DeviceCase, DeviceRow

    Outcome = DeviceRow | tuple[DeviceCase, str]


@click.command("device")
@options.comparing_options(0.1, " to the prediction from measured ops")
def command(
    machine: str | None,
    tolerance: float,
    threads: int,
    timeout_s: float,
    as_json: bool,
    output: Path | None,
) -> None:
    """Predict a fixed matrix of GPT and Llama steps on this device, run them, and compare.

    \b
    simgpt validate device
    simgpt validate device --json -o here.json

    Step time is predicted twice: from the calibration's tables, and from each distinct op measured
    alone with its real shapes. A CPU gets smaller shapes than a GPU. Ends with status 4 when the
    mean absolute error of the latter is above the tolerance.
    """
    from executor.launching.devices import accelerators, check_is_here
    from executor.launching.launch import require_torch
    from validation.device_validation import matrix, provenance, validate_device

    require_torch()
    kind = "cuda" if accelerators() else "cpu"
    cases = matrix(accelerator=kind == "cuda")
    given = options.machine_of(machine) if machine is not None else None
    if given is not None:
        check_is_here(given.device.name, kind, given.name)
    with Ticker() as ticker:
        precisions = {case.precision for case in cases}
        built = given or _calibrated(precisions, threads, timeout_s, ticker)
        found = list(
            validate_device(built, cases, threads=threads, timeout_s=timeout_s, progress=ticker)
        )
    record = _record(found, provenance(built), threads)
    options.answer(_text(found, record), record, as_json=as_json, output=output)
    if record["mape_ops"] > tolerance:
        options.note(f"above the tolerance of {tables.percent(tolerance)}")
        raise SystemExit(ExitStatus.OUTSIDE_TOLERANCE)


def _record(found: Sequence[Outcome], made: dict[str, str], threads: int) -> dict[str, Any]:
    from validation.host_validation import mape

    rows, left = _sides(found)
    if not rows:
        raise click.UsageError("no case of the matrix fits this device")
    return {
        **made,
        "threads": threads,
        "rows": [row.as_dict() for row in rows],
        "left_out": [{"case": case.gpt.name, "reason": reason} for case, reason in left],
        "mape_ops": mape([row.ops_error for row in rows]),
        "mape_profile": mape([row.profile_error for row in rows]),
    }


def _sides(found: Sequence[Outcome]) -> tuple[list[DeviceRow], list[tuple[DeviceCase, str]]]:
    """What was measured, and what was left out."""
    left = [row for row in found if isinstance(row, tuple)]
    return [row for row in found if not isinstance(row, tuple)], left


def _text(found: Sequence[Outcome], record: dict[str, Any]) -> str:
    rows, left = _sides(found)
    shown = [
        (
            row.case.gpt.name,
            str(row.case.plan),
            tables.seconds(row.measured_s),
            tables.percent(row.profile_error, sign=True),
            tables.percent(row.ops_error, sign=True),
            tables.percent(row.memory_error, sign=True),
        )
        for row in rows
    ]
    columns = ["model", "plan", "measured", "by tables", "by ops", "memory"]
    parts = [tables.table(columns, shown, left=2)]
    parts += [f"left out: {case.gpt.name}, {reason}" for case, reason in left]
    parts.append(
        f"mean absolute error {tables.percent(record['mape_profile'])} by tables, "
        f"{tables.percent(record['mape_ops'])} by ops, over {tables.several(len(rows), 'step')} "
        f"on {record['device']}"
    )
    return "\n\n".join(parts)


def _calibrated(precisions: set[str], threads: int, timeout_s: float, ticker: Ticker) -> Machine:
    from executor.calibrating.calibrate import calibrate
    from executor.launching.task_specs import Calibration

    chosen = tuple(sorted(precisions))
    task = Calibration(precisions=chosen, threads=threads, timeout_s=timeout_s)
    return options.check_machine(calibrate(task, 1, ticker, one_rank=False))
