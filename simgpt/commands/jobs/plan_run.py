"""`simgpt plan-run`: when a whole training run is done, failures and checkpoints counted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options
from simgpt.calendars import run_options as calendar
from simgpt.commands.predict import comment, remedy_of
from simgpt.invocation import asked_of_step
from simgpt.progress import Ticker
from simgpt.question import Question
from simgpt.question_options import asks
from simgpt.step import Sources, step_of
from topologies.errors import SimgptError

if TYPE_CHECKING:
    from simgpt.calendars.planned import Planned

NOT_FITTING = "does not fit into memory"


@click.command("plan-run")
@asks(tokens={"required": True, "help": "Train on: 300e9, 300B, 15T."})
@calendar.calendar_options
@options.answer_options
def command(question: Question, as_json: bool, output: Path | None, **how: Any) -> None:
    """Say when a training run is done: steps, saves, failures, restarts, spares and queues.

    \b
    simgpt plan-run llama-3.1-405b -m 2048x8xH100,8xNDR -n 16384 --stack megatron-core \\
        --plan tp=8,pp=16,dp=rest,ends_as_layers=true --batch 2048 --tokens 15T --storage '2 TB/s'
    simgpt plan-run gpt-80b -m frontier --nodes 512,1024 --plan z=64,dp=rest,recompute=full \\
        --batch 8192 --tokens 1T --mtbf 400d --walltime 12h --queue-wait 2h

    The step is that of `simgpt predict`, with its range. How often nodes fail and how fast the file
    system is are in the machine's file, or given. Lives of the run are drawn; the dates are the
    tenth, fiftieth and ninetieth of a hundred of them, beside the expected time by formulas.
    """
    from simgpt.calendars.planned import planned
    from simgpt.calendars.text import describe, record_of

    calendar.check(question, how)
    start = how["start"] or datetime.now(UTC).replace(tzinfo=None)
    with Ticker() as ticker:
        if how["nodes"]:
            found, compared = _compared(question, how, start, ticker)
        else:
            ticker("predicting the step and drawing lives of the run")
            found = planned(step_of(question, of_runs=True), how)
            compared = []
    record = record_of(found, start) | {"tokens": question.tokens, "compared": compared}
    record |= asked_of_step(found.step)
    text = describe(found, start, compared)
    options.answer(text, record, as_json=as_json, output=output)
    comment(found.prediction, remedy_of(found.prediction, found.step), output)


def _compared(
    question: Question, how: Mapping[str, Any], start: datetime, ticker: Ticker
) -> tuple[Planned, list[dict[str, Any]]]:
    """The run of the number of nodes that finishes first, and a row for each number."""
    from simgpt.calendars.planned import planned
    from simgpt.calendars.text import ends_of

    each = Sources(tells=False).machine(question).devices_per_node
    rows: list[dict[str, Any]] = []
    first: Planned | None = None
    for number, nodes in enumerate(how["nodes"]):
        ticker(f"planning the run on {nodes:,} nodes", done=number, of=len(how["nodes"]))
        try:
            told = question.changed(devices=nodes * each)
            step = step_of(told, Sources(tells=not number), of_runs=True)
            found = planned(step, how)
        except SimgptError as error:
            rows.append(_row(nodes, {}, str(error)))
            continue
        fits = found.prediction.memory.fits
        plan = {"plan_string": found.prediction.plan_text}
        ends = plan | ends_of(found, start) if fits else plan
        rows.append(_row(nodes, ends, "" if fits else NOT_FITTING))
        if fits and (first is None or _median_s(found) < _median_s(first)):
            first = found
    if first is None:
        reasons = "; ".join(f"{row['nodes']:,} nodes: {row['reason']}" for row in rows)
        raise click.UsageError(f"no number of nodes can run: {reasons}")
    return first, rows


def _median_s(found: Planned) -> float:
    return found.forecast.percentile_s(50)


def _row(nodes: int, record: Mapping[str, Any], reason: str) -> dict[str, Any]:
    keys = ("plan_string", "end", "low_end", "high_end", "median_s", "effective_share", "node_s")
    return {"nodes": nodes, "reason": reason or None} | {key: record.get(key) for key in keys}
