"""`simgpt calibrate`: measure the machine at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from simgpt import options, tables
from simgpt.progress import Ticker
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
@options.timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON object.")
def command(
    output: Path | None,
    ranks: int | None,
    precisions: tuple[str, ...],
    device: str,
    threads: int,
    quick: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Measure matmuls, memory-bound ops, attention and collectives on this machine.

    \b
    simgpt calibrate -o host.json
    simgpt predict tiny-10m -m host.json --plan data=2,precision=fp32 --batch 8

    The file is a machine file: `predict -m`, `run -m` and `validate host -m` take it.
    """
    from executor.calibrating.calibrate import calibrate
    from executor.launching.devices import accelerators, device_for
    from executor.launching.task_specs import Calibration

    count = ranks or (0 if device == "cpu" else accelerators()) or os.cpu_count() or 1
    device = device_for(device, count, options.note)
    task = Calibration(
        precisions=precisions or (("bf16",) if device == "cuda" else ("fp32",)),
        quick=quick,
        device=device,
        threads=threads,
        timeout_s=timeout_s,
    )
    with Ticker() as ticker:
        document = calibrate(task, count, ticker, one_rank=True)
    machine = options.check_machine(document)
    if output is None:
        options.say(json.dumps(document))
        return
    options.write(output, json.dumps(document) + "\n")
    record = _record(machine, output)
    options.answer(_describe(machine, output), record, as_json=as_json, output=None)


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
