"""`simgpt calibrate`: measure the machine at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from simgpt import options, tables
from simgpt.progress import Ticker
from simgpt.running.host_load import warn_if_busy
from topologies.machine import Machine


@click.command("calibrate")
@click.option(
    "-o",
    "--output",
    type=options.NewFile(".json"),
    help="The machine file to write (JSON); without it the file goes to stdout.",
)
@click.option("--ranks", type=click.IntRange(min=1), help="Devices to use; default: all.")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["bf16", "fp32", "fp64"]),
    help="Precision to measure, may be given again; default: fp32 on a CPU, bf16 on GPUs.",
)
@options.device_option
@options.threads_option
@click.option("--quick", is_flag=True, help="A coarse grid: seconds instead of minutes.")
@click.option(
    "--disturbed", is_flag=True, help="Keep what was measured even where its repeats disagree."
)
@options.timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON object.")
def command(
    output: Path | None, ranks: int | None, disturbed: bool, as_json: bool, **how: Any
) -> None:
    """Measure matmuls, memory-bound ops, attention and collectives on this machine.

    \b
    simgpt calibrate -o host.json
    simgpt predict tiny-10m -m host.json --plan dp=2,precision=fp32 --batch 8

    The file is a machine file: `predict -m`, `run -m` and `validate host -m` take it. Where other
    processes disturb the measurement, so that repeats of the same kernel disagree, nothing is
    written and the status is 5, unless --disturbed is given.
    """
    from executor.calibrating.calibrate import calibrate
    from executor.launching.devices import accelerators, device_for
    from executor.launching.task_specs import Calibration

    count = ranks or (0 if how["device"] == "cpu" else accelerators()) or os.cpu_count() or 1
    device = device_for(how["device"], count, options.note)
    precisions = how.pop("precisions") or (("bf16",) if device == "cuda" else ("fp32",))
    task = Calibration(**{**how, "precisions": precisions, "device": device})
    warn_if_busy()
    with Ticker() as ticker:
        document = calibrate(task, count, ticker, one_rank=True)
    _check_quiet(document, disturbed=disturbed)
    machine = options.check_machine(document)
    if output is None:
        options.say(json.dumps(document))
        return
    options.write(output, json.dumps(document) + "\n")
    record = _record(machine, output)
    options.answer(_describe(machine, output), record, as_json=as_json, output=None)


def _check_quiet(document: dict[str, Any], *, disturbed: bool) -> None:
    """Refuse, or at least say, that repeats of the same kernel disagree."""
    from executor.calibrating.conditions import DISTURBED, Conditions
    from executor.errors import DisturbedError

    under = Conditions.of(document)
    if under is None or not under.is_disturbed:
        return
    found = (
        f"repeats of the same kernel differ by {under.spread:.0%} (at most {DISTURBED:.0%} is "
        f"usual; {under.load_words} at the start)"
    )
    if not disturbed:
        raise DisturbedError(
            f"{found}, so nothing was written; calibrate again on a quiet machine, or keep the "
            "measurement with --disturbed"
        )
    options.note(f"{found}; kept because of --disturbed")


def _describe(machine: Machine, path: Path) -> str:
    device = machine.device
    facts = [
        ("device", device.name),
        ("ranks", f"{machine.devices}"),
        *((f"best {p} matmul", tables.rate(rate)) for p, rate in device.peak_flops_per_s.items()),
        ("memory bandwidth", tables.rate(device.memory_bytes_per_s, "bytes/s")),
    ]
    return f"wrote {path}\n\n" + tables.table([], facts, left=2)


def _record(machine: Machine, path: Path) -> dict[str, Any]:
    return {
        "machine": str(path),
        "device": machine.device.name,
        "ranks": machine.devices,
        "best_matmul_flops_per_s": dict(machine.device.peak_flops_per_s),
        "memory_bytes_per_s": machine.device.memory_bytes_per_s,
    }
