"""`simgpt bench-network`: the table that a collective benchmark would print on a machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from simgpt import options, tables
from simgpt.arguments.machine import settings_options
from topologies.collectives.benchmark import BenchmarkLine, bench, doubling, sizes_of
from topologies.errors import MachineError, SimgptError
from topologies.hardware.software import ALGORITHMS, Kind

MOST_DIGITS = 9  # of a number of devices


@click.command("bench-network")
@click.option("-m", "--machine", "name", required=True, help=options.MACHINE_HELP)
@click.option(
    "--collective", type=click.Choice(list(ALGORITHMS)), default="all_gather", show_default=True
)
@click.option("--sizes", default="1MiB:1GiB", show_default=True, help="FROM:TO by doubling.")
@click.option("--devices", default="16:1024", show_default=True, help="FROM:TO by doubling.")
@click.option(
    "--placement",
    default="contiguous",
    show_default=True,
    help="As for predict: contiguous, scheduler, scattered:30, hosts:NAME[1-64].",
)
@click.option(
    "--algorithm",
    default="auto",
    show_default=True,
    help="As the library picks (auto), the cheapest, or by name: ring, tree, hierarchical.",
)
@settings_options
@options.answer_options
def command(
    name: str,
    collective: Kind,
    sizes: str,
    devices: str,
    placement: str,
    algorithm: str,
    settings: tuple[str, ...],
    as_json: bool,
    output: Path | None,
) -> None:
    """Print the table that nccl-tests or its like would print on a machine.

    \b
    simgpt bench-network -m frontier --collective all_gather --sizes 1MiB:1GiB --devices 16:1024
    simgpt bench-network -m perlmutter --collective all_reduce --algorithm hierarchical

    Size and bandwidths are those of nccl-tests: algbw is size over time, and busbw what the links
    of a ring would carry. One group over all devices.
    """
    machine = options.machine_of(name, settings)
    if algorithm not in (known := ALGORITHMS[collective]):
        raise MachineError(
            f'--algorithm "{algorithm}" is no algorithm of {collective}; try {", ".join(known)}'
        )
    counts = _given("--devices", devices, lambda text: doubling(text, _whole))
    lines = bench(
        machine, collective, _given("--sizes", sizes, sizes_of), counts, algorithm, placement
    )
    record: dict[str, Any] = {
        "machine": name,
        "collective": collective,
        "placement": placement,
        "algorithm": algorithm,
        "rows": [line.as_dict() for line in lines],
    }
    options.answer(_text(lines), record, as_json=as_json, output=output)


def _text(lines: list[BenchmarkLine]) -> str:
    columns = ["algorithm", "devices", "bytes", "time", "algbw (GB/s)", "busbw (GB/s)"]
    known = next((line.band for line in lines if line.band is not None), None)
    rows = [
        (
            line.algorithm,
            f"{line.devices:,}",
            f"{line.size_bytes:,.0f}",
            tables.seconds(line.seconds),
            f"{line.algbw_bytes_per_s / 1e9:.4g}",
            f"{line.busbw_bytes_per_s / 1e9:.4g}",
            *([_within(line)] if known is not None else []),
        )
        for line in lines
    ]
    if known is None:
        return tables.table(columns, rows)
    about = f"(8 of 10 runs: how {known.words} lay about their median)"
    return f"{tables.table([*columns, '8 of 10 runs'], rows)}\n{tables.paragraph(about)}"


def _within(line: BenchmarkLine) -> str:
    return tables.between(*line.band.around(line.seconds)) if line.band is not None else ""


def _given(option: str, text: str, values_of: Callable[[str], list[float]]) -> list[float]:
    """The values of an option; what is wrong with them is said with its name."""
    try:
        return values_of(text)
    except SimgptError as error:
        raise MachineError(f"{option} {error}") from None


def _whole(text: str) -> float:
    if not text.isdecimal() or len(text) > MOST_DIGITS or int(text) < 2:
        raise MachineError(f"{text} is no number of devices; write 16:1024 or 64")
    return float(text)
