"""`simgpt machines`: what is known of each machine, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from simgpt import options, tables
from topologies.files.printable import toml_text
from topologies.hardware.assumptions import assumed
from topologies.machine import Machine, machine_to_dict
from topologies.machine_files import load_machine
from topologies.placement import is_of_any_size
from topologies.shipped import machine_names


@click.command("machines")
@click.argument("name", required=False)
@click.option(
    "--figure",
    type=options.NewFile(".png", ".svg", ".pdf"),
    help="Draw the node into this PNG or SVG, and the interconnect beside it.",
)
@click.option("--toml", "as_toml", is_flag=True, help="Print a file that reads as this machine.")
@options.answer_options
def command(
    name: str | None, figure: Path | None, as_toml: bool, as_json: bool, output: Path | None
) -> None:
    """List the machines, or show every fact of one with its source.

    \b
    simgpt machines
    simgpt machines frontier --figure frontier.png

    simgpt machines 64x8xH100,8xNDR --toml -o mine.toml

    NAME may name a software variant, as in frontier:rccl-default, and GPUDirect off, as in
    frontier:no-gdr; or be a machine's own file or its parts. A file printed by --toml has every
    value, with its source, and can be changed.
    """
    if as_toml and (name is None or as_json):
        raise click.UsageError(
            "--toml needs the NAME of a machine, and cannot be combined with --json"
        )
    if name is None and figure is not None:
        raise click.UsageError("--figure needs the NAME of a machine")
    if name is None:
        _list(as_json=as_json, output=output)
        return
    machine = options.machine_of(name)
    if figure is not None:
        _check_figures(machine, figure, output)
    keys = ("key", "value", "confidence", "source")
    facts = [(fact.key, fact.text, fact.confidence, fact.source) for fact in machine.facts()]
    record: dict[str, Any] = {
        **_record(machine),
        "facts": [dict(zip(keys, fact, strict=True)) for fact in facts],
        "inherited": _inherited(machine),
        "assumed": assumed([fact.key for fact in machine.entries]),
    }
    text = toml_text(machine_to_dict(machine)) if as_toml else _describe(machine)
    options.answer(text, record, as_json=as_json, output=output)
    if figure is not None:
        _draw(machine, figure)


def _check_figures(machine: Machine, path: Path, output: Path | None) -> None:
    """Refuse what cannot be drawn, or written beside the answer, before anything is."""
    from topologies.figures import check_switches

    if machine.nodes > 1:
        check_switches(machine)
    for each in _paths(machine, path):
        options.check_apart(output, each, "--figure")


def _paths(machine: Machine, path: Path) -> list[Path]:
    """Where the pictures go: that of the interconnect, if there is one, beside that of the node."""
    joined = [path.with_stem(f"{path.stem}-interconnect")] if machine.nodes > 1 else []
    return [path, *joined]


def _draw(machine: Machine, path: Path) -> None:
    """A picture of the node in `path`, and one of the interconnect in `path`-interconnect."""
    from topologies.figures import draw_interconnect, draw_node

    written = _paths(machine, path)
    draw_node(machine, path)
    for joined in written[1:]:
        draw_interconnect(machine, joined)
    options.wrote(written, " and ".join(str(each) for each in written))


def _describe(machine: Machine) -> str:
    """Every fact, its source as a number, and the numbered sources below."""
    facts = machine.facts()
    numbers: dict[str, str] = {}
    for fact in facts:
        numbers.setdefault(fact.source, f"[{len(numbers) + 1}]")
    rows = [(f.key, f.text, f.confidence, numbers[f.source]) for f in facts]
    sources = [
        tables.paragraph(f"{number:<6}{source}", indent=" " * 6)
        for source, number in numbers.items()
    ]
    columns = ["key (for --set)", "value", "confidence", "source"]
    shown = [machine.description, "", tables.table(columns, rows, left=4), "", "sources", *sources]
    return "\n".join([*shown, *_not_given(machine)])


def _not_given(machine: Machine) -> list[str]:
    """What the machine's file does not say itself: where it is from, or what stands for it."""
    lines = []
    for source, keys in _inherited(machine).items():
        text = f"inherited from {source}: {', '.join(_shortened(machine, keys))}"
        lines += ["", tables.paragraph(text, indent="  ")]
    if missing := assumed([fact.key for fact in machine.entries]):
        lines += ["", "not given, and what is assumed"]
        lines.append(tables.table([], list(missing.items()), left=2))
    return lines


def _inherited(machine: Machine) -> dict[str, list[str]]:
    """The keys of the values that were taken over, by what they were taken from."""
    found: dict[str, list[str]] = {}
    for fact in machine.entries:
        if fact.inherited:
            found.setdefault(fact.inherited, []).append(fact.key)
    return found


def _shortened(machine: Machine, keys: list[str]) -> list[str]:
    """The keys, with the name of a table alone where all that it has is among them."""
    others = {fact.key for fact in machine.entries} - set(keys)
    short = []
    for key in keys:
        parts = key.split(".")
        tables_of = [".".join(parts[:n]) for n in range(1, len(parts))]
        whole = [t for t in tables_of if not any(other.startswith(f"{t}.") for other in others)]
        short.append(whole[0] if whole else key)
    return list(dict.fromkeys(short))


def _list(*, as_json: bool, output: Path | None) -> None:
    every = [load_machine(name) for name in machine_names()]
    columns = ["machine", "what it is", "devices", "per node", "bf16 peak", "memory"]
    rows = [
        (
            m.name,
            m.description,
            "any number" if is_of_any_size(m) else f"{m.devices:,}",
            f"{m.devices_per_node}",
            _peak(m),
            tables.gib(m.device.memory_bytes),
        )
        for m in every
    ]
    record = {"machines": [_record(machine) for machine in every]}
    options.answer(tables.table(columns, rows, left=2), record, as_json=as_json, output=output)


def _peak(machine: Machine) -> str:
    peak = machine.device.peak_flops_per_s.get("bf16")
    return tables.rate(peak, digits=4) if peak else "-"


def _record(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "description": machine.description,
        "devices": machine.devices,
        "any_number": is_of_any_size(machine),
        "devices_per_node": machine.devices_per_node,
        "peak_flops_per_s": dict(machine.device.peak_flops_per_s),
        "memory_bytes": machine.device.memory_bytes,
    }
