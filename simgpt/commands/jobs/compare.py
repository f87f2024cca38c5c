"""`simgpt compare`: a measured job beside its prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.anchors import AnchorError, anchor_text
from simgpt.commands.jobs.of_log import completed_by_log, log_alone
from simgpt.commands.jobs.reference import (
    Reference,
    described,
    options_of,
    reference_of,
    waterfall_of,
)
from simgpt.compared_job import compared
from simgpt.invocation import asked_of_step
from simgpt.question import Question
from simgpt.question_options import asks
from simgpt.step import Sources, Step, step_of

if TYPE_CHECKING:
    from simulator.explain.waterfall import Waterfall
    from validation.jobs.comparison import JobComparison

COLUMN = 34  # characters of the tables' first column
LEAST = 0.0005  # of a step: parts below on both sides are left out of the text


@click.command("compare")
@click.argument("log", type=click.Path(path_type=Path))
@asks(model={"required": False}, without=("compute", "tokens"), unheeded=("tokens",))
@click.option(
    "--warm-up",
    type=click.IntRange(0, 10**6),
    help="Steps after each start to leave out; default: 5, of a trace 0.",
)
@click.option(
    "--save",
    type=options.NewFile(".toml"),
    help="Write the measured step as an anchor, for --anchor of predict, search, sweep and why.",
)
@click.option(
    "--software",
    metavar="TEXT",
    help="With --save: releases and settings that ran, kept beside the step.",
)
@click.option(
    "--reference",
    metavar="RUN",
    help="Explain by cause why the job is slower or faster than another one: an anchor's file, the "
    "id of a published run, or the plan's keys that differ, such as recompute=none,pp=2.",
)
@click.option(
    "--reached",
    metavar="RATE",
    help="With --reference: its measured model FLOP/s per device, such as '420 TFLOP/s'.",
)
@options.answer_options
def command(question: Question, log: Path, as_json: bool, output: Path | None, **how: Any) -> None:
    """Compare a measured job, from its log or trace, with its prediction.

    \b
    simgpt compare train.log -m 8x8xH100,8xNDR
    simgpt compare train.log llama-3.1-8b -m 8x8xH100,8xNDR -n 64 --stack megatron-core \\
        --plan tp=2,dp=rest,mbs=1,sp=true --batch 256
    simgpt compare rank0.json.gz gpt-5b -m perlmutter -n 64 --plan z=8,dp=rest --batch 64 --json

    LOG is the output of a framework (docs/compare.md lists them), JSON lines of steps, what `simgpt
    run --json` wrote, or a trace of torch.profiler (.json or .json.gz); its content tells which.
    If the log contains the job's arguments, as those of Megatron-LM, NeMo and torchtitan do, MODEL
    and --plan may be left out: they, the batch, devices and stack are then taken from the log.
    The step is predicted as `simgpt predict` does, with the same options. --save writes the
    measured step as an anchor, a file by which other answers are scaled.
    """
    options.check_apart(output, how["save"], "--save")
    if how["software"] is not None and how["save"] is None:
        raise click.UsageError("--software needs --save")
    options_of(how)
    completed, remarks = completed_by_log(question, log)
    step = step_of(completed)
    found = compared(step, step.predicted(), log, how["warm_up"])
    job = replace(found.job, remarks=(*remarks, *found.job.remarks))
    found = replace(found, job=job)
    record = {**found.as_dict(), **asked_of_step(step)}
    text = describe(found, log)
    if (way := _way(found, step, log, how)) is not None:
        text += f"\n\n{described(way[1], way[0])}"
        record["waterfall"] = {"reference": way[0], **way[1].as_dict()}
    options.answer(text, record, as_json=as_json, output=output)
    if (path := how["save"]) is not None:
        stack = completed.stack or step.job.stack.name
        _save(found, completed.changed(stack=stack), how, log)
        options.wrote([path], f"{path}; simgpt predict … --anchor {path} scales by it")


def _way(
    found: JobComparison, step: Step, log: Path, how: Mapping[str, Any]
) -> tuple[str, Waterfall] | None:
    """The reference's name and the changes from it to the job, cause by cause.

    The reference is the user's or, if the log's arguments are those of another job, the question
    itself; None without a reference."""
    name, reached = options_of(how)
    policy = step.question.placement
    if name is not None:
        other = reference_of(name, reached, step)
        return other.name, waterfall_of(other, found, step, policy)
    own = log_alone(log, step.question) if found.differences else None
    if own is None:
        return None
    job = step_of(own, Sources(tells=False))
    told = replace(found, prediction=job.predicted())
    asked_for = Reference("the question", step)
    return asked_for.name, waterfall_of(asked_for, told, job, policy)


def _save(found: JobComparison, question: Question, how: Mapping[str, Any], log: Path) -> None:
    """Write the anchor of a compared job, which must be of the question as far as it says."""
    if found.differences:
        raise AnchorError(f"no anchor is written: {'; '.join(found.differences)}")
    software = how["software"] or ""
    text = anchor_text(found, question, log=log, file=how["save"], software=software)
    options.write(how["save"], text)


def describe(found: JobComparison, log: Path) -> str:
    """The comparison as a person reads it."""
    from topologies.files.printable import path_shown

    prediction, steps = found.prediction, found.steps
    left = f", {steps.left_out} of warm-up left out"
    head = [
        f"{path_shown(log)}: {found.job.kind}, {tables.several(steps.steps, 'step')}"
        f"{left if steps.left_out else ''}",
        tables.paragraph(
            f"{prediction.gpt.name} on {tables.several(prediction.devices, 'device')} of "
            f"{prediction.machine}, stack {prediction.stack.name}",
            indent=" " * 5,
        ),
        tables.paragraph(f"plan {prediction.plan_text}", indent=" " * 5),
    ]
    parts = [
        "\n".join(head),
        tables.table(["", "measured", "predicted", "error"], list(_facts(found)), first=COLUMN),
        *_tables(found),
        "\n".join(tables.paragraph(f"- {each}", indent="  ") for each in found.causes),
        "\n".join(tables.paragraph(f"({each})", indent=" ") for each in _remarks(found)),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(found: JobComparison) -> Iterator[tuple[str, str, str, str]]:
    """The step and what else both sides have, as rows of a table."""
    prediction, steps, job = found.prediction, found.steps, found.job
    within = prediction.range
    yield _row("step (median)", steps.median_s, prediction.step_s)
    measured = tables.between(steps.p10_s, steps.p90_s)
    told = tables.between(within.low_s, within.high_s)
    lies = "median within" if found.is_within else "median outside"
    yield "80 % range (p10 to p90)", measured, told, lies
    if steps.flops_per_s is not None:
        real, model = steps.flops_per_s, prediction.model_flops_per_s_per_device
        error = tables.percent(model / real - 1, sign=True)
        yield "model FLOP/s per device", tables.rate(real), tables.rate(model), error
    if job.peak_bytes is not None:
        real, peak = job.peak_bytes, prediction.memory.peak_bytes
        alike = job.peak_of == "allocated"
        error = tables.percent(peak / real - 1, sign=True) if alike else "-"
        yield f"peak memory ({job.peak_of})", tables.gib(real), tables.gib(peak), error


def _tables(found: JobComparison) -> Iterator[str]:
    """The parts of the step, where there are some, and the log's timers."""
    step_s = found.prediction.step_s
    columns = ["measured", "predicted", "error"]
    for title, rows in (
        ("where the step goes", found.parts()),
        ("kernels and collectives, each summed", found.kernels()),
    ):
        shown = [_row(*row) for row in rows if max(row[1:]) >= LEAST * step_s]
        if shown:
            yield tables.table([title, *columns], shown, first=COLUMN)
    if found.job.timers_s:
        timers = [
            (name, tables.seconds(real), "-", "-") if told is None else _row(name, real, told)
            for name, real, told in found.timers()
        ]
        yield tables.table(["timers of the log", *columns], timers, first=COLUMN)


def _remarks(found: JobComparison) -> Iterator[str]:
    yield from found.job.remarks
    own = [name for name, _, told in found.timers() if told is None]
    if own:
        yield "timers without a prediction are the log's own: no predicted part has their extent"
    yield f"80 % range, predicted: {found.prediction.range.words}"


def _row(name: str, measured_s: float, predicted_s: float) -> tuple[str, str, str, str]:
    error = tables.percent(predicted_s / measured_s - 1, sign=True) if measured_s else "-"
    return name, tables.seconds(measured_s), tables.seconds(predicted_s), error
