"""`simgpt validate engine`: the compiled engine beside SimPy's, to the tick."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from simgpt import options, tables
from simgpt.invocation import ran
from simgpt.progress import Ticker
from topologies.exit_status import ExitStatus

MACHINES = ("frontier", "perlmutter", "alps")
MOST_PLANS = 1_000_000


@click.command("engine")
@click.option("-m", "--machine", "machines", multiple=True, help="A machine, or several.")
@click.option("--plans", type=click.IntRange(1, MOST_PLANS), default=200, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32), default=0, show_default=True)
@options.answer_options
def command(
    machines: tuple[str, ...], plans: int, seed: int, as_json: bool, output: Path | None
) -> None:
    """Simulate drawn plans with both engines, and compare every op's start and end.

    \b
    simgpt validate engine
    simgpt validate engine -m mycluster.toml --plans 1000 --json

    The engines are SimPy's, which simgpt is written for, and the same recurrence compiled, which
    serves where simgpt was installed with a C compiler. Ends with status 4 where they differ.
    """
    from validation.engine_validation import validate_engines

    built = [options.machine_of(name) for name in machines or MACHINES]
    with Ticker() as ticker:
        rows = validate_engines(
            built, plans, seed, lambda done: ticker("simulating", done=done, of=plans)
        )
    different = [row for row in rows if not row.equal]
    lines = []
    for machine in dict.fromkeys(row.machine for row in rows):
        own = [row for row in rows if row.machine == machine]
        seconds = [sum(getattr(row, key) for row in own) for key in ("compiled_s", "simpy_s")]
        equal = sum(row.equal for row in own)
        spans = sum(row.spans for row in own)
        lines.append((machine, f"{len(own):,}", f"{equal:,}", f"{spans:,}", *map(_cpu, seconds)))
    columns = ["machine", "plans", "equal", "ops", "compiled CPU s", "simpy CPU s"]
    text = tables.table(columns, lines, left=1)
    text += "".join(f"\ndiffers: {row.model} on {row.machine}, {row.plan}" for row in different)
    record = {"equal": not different, "rows": [asdict(row) for row in rows], **ran()}
    options.answer(text, record, as_json=as_json, output=output)
    if different:
        raise SystemExit(ExitStatus.OUTSIDE_TOLERANCE)


def _cpu(seconds: float) -> str:
    return f"{seconds:.2f}"
