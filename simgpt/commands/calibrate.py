"""`simgpt calibrate`: measure the machine at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from simgpt import options
from simgpt.progress import Ticker


@click.command("calibrate")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
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
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--quick", is_flag=True, help="A coarse grid: seconds instead of minutes.")
@click.option("--timeout", "timeout_s", default=300.0, show_default=True, help="Seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON object.")
def command(
    output: Path | None,
    ranks: int | None,
    precisions: tuple[str, ...],
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
    from executor.calibration import calibrate
    from executor.devices import accelerators
    from executor.tasks import Calibration

    gpus = accelerators()
    count = ranks or gpus or os.cpu_count() or 1
    task = Calibration(
        precisions=precisions or (("bf16",) if gpus else ("fp32",)),
        quick=quick,
        threads=threads,
        timeout_s=timeout_s,
    )
    with Ticker() as ticker:
        document = calibrate(task, count, ticker, solo=True)
    options.check_machine(document)
    content = json.dumps(document)
    if output is None:
        click.echo(content)
        return
    options.write(output, content + "\n")
    peaks = document["device"]["peak_flops"]
    record = {
        "machine": str(output),
        "device": document["device"]["name"],
        "ranks": count,
        "best_matmul": {precision: fact["value"] for precision, fact in peaks.items()},
        "memory_bandwidth": document["device"]["memory_bandwidth"]["value"],
    }
    lines = [f"wrote {output}: {record['device']}, {count} rank(s)"]
    lines += [f"best {p} matmul {fact['value']}" for p, fact in peaks.items()]
    options.answer("\n".join(lines), record, as_json=as_json, output=None)
