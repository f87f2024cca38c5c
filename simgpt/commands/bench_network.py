"""`simgpt bench-network`: the table that a collective benchmark would print on a machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from simgpt import options, tables
from simgpt.question import Question
from simgpt.question_options import asks
from simgpt.step import Sources
from topologies.collectives.benchmark import BenchmarkLine, bench, doubling, sizes_of
from topologies.errors import MachineError, SimgptError
from topologies.hardware.software import ALGORITHMS, Kind
from topologies.machine import Machine

GIVEN = ("collective", "devices", "sizes", "placement", "algorithm")  # options beside --fit
MOST_DIGITS = 9  # of a number of devices


@click.command("bench-network")
@asks("machine", "set")
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
@click.option(
    "--fit",
    "table",
    type=click.Path(path_type=Path),
    metavar="TABLE",
    help="Compare a table of nccl-tests or rccl-tests with the prediction, and fit `software` to "
    "it; -o FILE.toml then writes a machine file with the fitted keys. If the table has lost its "
    "header, give --collective and --devices.",
)
@options.answer_options
def command(
    question: Question,
    collective: Kind,
    sizes: str,
    devices: str,
    placement: str,
    algorithm: str,
    table: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Predict the table that nccl-tests would print on a machine, or fit the machine to one.

    \b
    simgpt bench-network -m frontier --collective all_gather --sizes 1MiB:1GiB --devices 16:1024
    simgpt bench-network -m perlmutter --collective all_reduce --algorithm hierarchical
    simgpt bench-network -m 2x8xA100,4xEFA-100 --fit all_reduce.txt -o ours.toml

    Size and bandwidths are defined as in nccl-tests: algbw is size over time, and busbw what the
    links of a ring would carry. All devices are one group.
    """
    machine, name = Sources().machine(question), question.machine
    if table is not None:
        _fit(machine, name, table, as_json=as_json, output=output)
        return
    if algorithm not in (known := ALGORITHMS[collective]):
        raise MachineError(
            f'--algorithm "{algorithm}" is not an algorithm of {collective}; try {", ".join(known)}'
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


def _fit(machine: Machine, name: str, table: Path, *, as_json: bool, output: Path | None) -> None:
    """Answer with measured, predicted and fitted times; an output of .toml gets the machine."""
    from simgpt.commands.network_fit import fit_record, fit_text, fitted_to, machine_file

    context = click.get_current_context()
    source, given = context.get_parameter_source, context.params
    said = [n for n in GIVEN if source(n) is ParameterSource.COMMANDLINE]
    for option in (n for n in said if n not in ("collective", "devices")):
        raise click.UsageError(
            f"--{option} cannot be combined with --fit: sizes and groups are those of {table}"
        )
    ranks = 0
    if "devices" in said:
        counts = _given("--devices", given["devices"], lambda text: doubling(text, _whole))
        if len(counts) != 1:
            raise click.UsageError("with --fit, --devices must be one number: the table's ranks")
        ranks = int(counts[0])
    kind = given["collective"] if "collective" in said else None
    found = fitted_to(machine, table, kind=kind, ranks=ranks)
    record = {"machine": name, **fit_record(found)}
    as_file = output is not None and output.suffix == ".toml"
    if as_file and output is not None:
        options.write(output, machine_file(found, name, output) + "\n")
        options.note(f"wrote {output}")
    options.answer(fit_text(found), record, as_json=as_json, output=None if as_file else output)


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
    about = f"(80 % of runs: how {known.words} lay about their median)"
    return f"{tables.table([*columns, '80 % of runs'], rows)}\n{tables.paragraph(about)}"


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
        raise MachineError(f"{text} is not a number of devices; write 16:1024 or 64")
    return float(text)
