"""`simgpt machines`: what is known of each machine, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from simgpt import options, tables
from topologies.load import load_machine, machine_names
from topologies.machine import Machine


@click.command("machines")
@click.argument("name", required=False)
@options.answer_options
def command(name: str | None, as_json: bool, output: Path | None) -> None:
    """List the machines, or show every fact of one with its source.

    \b
    simgpt machines
    simgpt machines frontier
    """
    if name is None:
        _list(as_json=as_json, output=output)
        return
    machine = options.machine_of(name)
    facts = [(fact.key, fact.text, fact.confidence or "", fact.source) for fact in machine.facts()]
    text = f"{machine.description}\n" + tables.table(
        ["key (for --set)", "value", "confidence", "source"], facts, left=4
    )
    keys = ("key", "value", "confidence", "source")
    record: dict[str, Any] = {
        **_record(machine),
        "facts": [dict(zip(keys, fact, strict=True)) for fact in facts],
    }
    options.answer(text, record, as_json=as_json, output=output)


def _list(*, as_json: bool, output: Path | None) -> None:
    every = [load_machine(name) for name in machine_names()]
    columns = ["machine", "devices", "per node", "bf16 peak", "memory", "what it is"]
    rows = [
        (
            m.name,
            f"{m.devices:,}",
            f"{m.devices_per_node}",
            f"{m.device.peak_flops_per_s['bf16'] / 1e12:.4g} TFLOP/s",
            tables.gib(m.device.memory_bytes),
            m.description,
        )
        for m in every
    ]
    record = {"machines": [_record(machine) for machine in every]}
    options.answer(tables.table(columns, rows), record, as_json=as_json, output=output)


def _record(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "description": machine.description,
        "devices": machine.devices,
        "devices_per_node": machine.devices_per_node,
        "peak_flops_per_s": dict(machine.device.peak_flops_per_s),
        "memory_bytes": machine.device.memory_bytes,
    }
