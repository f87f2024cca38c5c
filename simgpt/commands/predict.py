"""`simgpt predict`: one training step, predicted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import noise_options, options
from simgpt.advice import starved, what_fits
from simgpt.anchors import anchor_option, anchored, anchors_of
from simgpt.api.collected import collecting
from simgpt.arguments.machine import segments_record
from simgpt.commands.prediction_text import describe, describe_training
from simgpt.invocation import asked_of_step
from simgpt.question import Question
from simgpt.question_options import asks
from simgpt.step import Sources, Step, step_of
from topologies.exit_status import ExitStatus
from topologies.session import gc_paused

if TYPE_CHECKING:
    from simulator.explain.assumed import Granted
    from simulator.predict import Prediction
    from topologies.hardware.run_to_run import Band
    from topologies.machine import Machine
    from topologies.placement import Placement

ENGINES = ("compiled", "simpy")


@click.command("predict")
@asks()
@click.option(
    "--sweep",
    "swept",
    multiple=True,
    metavar="KEY=V1,V2,…",
    help="Predict every combination: z=16,64 devices=512,1024 device.launch='5 us,9 us'.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="What simulates: compiled (where there was a C compiler), or simpy, to the same tick.",
)
@click.option(
    "--trace",
    type=options.NewFile(),
    help="Write the step's timeline for ui.perfetto.dev.",
)
@anchor_option
@noise_options.noise_options
@options.answer_options
def command(question: Question, as_json: bool, output: Path | None, **how: Any) -> None:
    """Predict how long one training step takes, what limits it, and whether it fits.

    \b
    simgpt predict gpt-80b -m frontier -n 8192 --plan z=64,dp=rest,recompute=full --batch 8192
    simgpt predict gpt-40b -m perlmutter -n 4096 --plan x=4,z=8,dp=rest,recompute=full \\
        --batch-tokens 16777216 --set device.peak_flops.bf16="400 TFLOP/s" --json

    With --compute measured, one device predicts thousands: each distinct op of one rank runs on it
    with its real shapes (kept in ~/.cache/simgpt), and the machine's file says what connects them.
    With --compute profile, matmuls come from tables measured on A100, H100 or GH200.

    A plan fits if 9 of 10 comparable runs would (P >= 0.9), and does not if 9 of 10 would not;
    between it is tight. One that does not fit is answered in full, and then ends with status 3.
    """
    if how["swept"]:
        return _sweep(question, as_json=as_json, output=output, how=how)
    options.check_apart(output, how["trace"])
    with gc_paused():
        told, record, prediction = answered(question, how, told=not as_json)
    options.answer(told, record, as_json=as_json, output=output)
    if how["trace"] is not None:
        write_trace(prediction, how["trace"])
    comment(prediction, record["remedy"] or "", output)


def answered(
    question: Question, how: Mapping[str, Any], *, told: bool = True
) -> tuple[Callable[[], str], dict[str, Any], Prediction]:
    """The answer to a question and the other options of `simgpt predict`: what makes its text, its
    JSON record and the prediction. It needs click's context, in which the engine that was asked for
    serves. Steps otherwise are predicted only where the text is `told` to a person."""
    from simulator.engine.engines import engine_name, using

    _check_anchors(question, how)
    step = step_of(question)
    job, built, placed = step.job, step.machine, step.placement
    click.get_current_context().with_resource(using(how["engine"]))
    prediction = step.predicted(timeline=how["trace"] is not None)
    prediction = anchored(step, prediction, how["anchors"])
    reach = reach_of(prediction, built, placed)
    remedy = remedy_of(prediction, step)
    granted = _granted(prediction, step, how, told=told)
    racks = segments_record(built, prediction.devices)
    runs = built.band("step", prediction.cost.nodes)
    record = _record(prediction, remedy, {"software": built.variant, "engine": engine_name()}, runs)
    record |= granted.as_dict()
    noise = noise_options.answered(how, prediction, step)
    record |= asked_of_step(step, axes=reach, **racks) | noise.record
    further = noise.text
    if question.tokens is not None:
        run = prediction.cost.training(question.tokens, prediction.tokens_per_step)
        record |= {"training": run.as_dict()}
        further += f"\n\n{describe_training(run)}"
    about = prediction, question.placement, reach, job, remedy
    told_in_words = partial(describe, *about, runs=runs, granted=granted, further=further)
    return told_in_words, record, prediction


def _granted(prediction: Prediction, step: Step, how: Mapping[str, Any], *, told: bool) -> Granted:
    """What the answer takes for granted, and where it is told the same question's steps otherwise,
    which take a prediction each."""
    from simulator.explain.assumed import granted

    def under(stack: str) -> Prediction:
        other = step.question.changed(stack=stack)
        return step_of(other, Sources(tells=False)).predicted()

    is_asked = told and collecting() is None and not step.is_measured and not how["anchors"]
    return granted(prediction, under if is_asked else None)


def _check_anchors(question: Question, how: Mapping[str, Any]) -> None:
    """Refuse what shows times of single ops, or draws others, beside a scaled step."""
    others = {"--trace": how["trace"] is not None, "--compute": question.compute != "machine"}
    for option, given in others.items():
        if given and how["anchors"]:
            raise click.UsageError(f"--anchor cannot be combined with {option}")
    if how["anchors"]:
        noise_options.refuse(how, "--anchor")


def _record(
    prediction: Prediction, remedy: str, about: dict[str, str], runs: Band | None
) -> dict[str, Any]:
    """The prediction as it stands in JSON, with what makes it fit and what else is known of it."""
    band = runs.as_dict(prediction.step_s) if runs is not None else None
    found = {"remedy": remedy, **about, "run_to_run": band}
    return prediction.as_dict() | {key: known or None for key, known in found.items()}


def remedy_of(prediction: Prediction, step: Step) -> str:
    """By how much a plan does not fit, or is tight, and what to change; nothing of one that fits.
    The changes stand in the order of the predicted steps, unless ops are measured: those of other
    plans are not."""
    if prediction.memory.is_sure:
        return ""
    return what_fits(prediction, step.machine, None if step.is_measured else step.changed)


def comment(prediction: Prediction, remedy: str, output: Path | None) -> None:
    """Say what to change about a plan that mostly waits, is tight or does not fit, unless the
    answer itself says so on the screen; the last ends with 3."""
    if few := starved(prediction.plan):
        options.note(few)
    if remedy and (output is not None or not _is_on_screen()):
        options.note(remedy)
    if not prediction.memory.fits:
        raise SystemExit(ExitStatus.CANNOT_RUN)


def _is_on_screen() -> bool:
    """Whether what is printed is read where notes are."""
    streams = (sys.stdout, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams)


def _sweep(
    question: Question, *, as_json: bool, output: Path | None, how: Mapping[str, Any]
) -> None:
    """Predict every combination of the swept values, and keep the rows nowhere."""
    from simgpt.commands.sweep import SHOWN, answer_rows, swept
    from simgpt.progress import Ticker
    from simgpt.studies.inline_study import study_of_words
    from simgpt.studies.inputs import inputs_of
    from simgpt.studies.study_table import describe, ranked
    from simgpt.studies.sweep_rows import sweep

    if how["trace"] is not None:
        raise click.UsageError("--sweep cannot be combined with --trace")
    noise_options.refuse(how, "--sweep")
    if how["engine"] is not None:
        raise click.UsageError("--sweep takes its engine from SIMGPT_ENGINE, as its workers do")
    study = study_of_words(question, how["swept"])
    inputs = inputs_of(study, anchors_of(how["anchors"]))
    with Ticker() as ticker, gc_paused():
        rows = sweep(study, inputs, lambda done: ticker("sweeping", done=done, of=len(study)))
        best_first = ranked(rows, "throughput")
    told = partial(describe, study, best_first, SHOWN, "throughput")
    about = swept(study, "throughput")
    answer_rows(told, about, best_first, as_json=as_json, output=output)


def write_trace(prediction: Prediction, path: Path) -> None:
    """Write the prediction's timeline for a browser."""
    from workload.timeline import chrome_trace

    assert prediction.timeline is not None
    with gc_paused():
        options.write(path, options.compact(chrome_trace([prediction.timeline])))
    options.wrote([path], f"{path}; open it at ui.perfetto.dev")


def reach_of(prediction: Prediction, machine: Machine, placement: Placement) -> dict[str, str]:
    """How far the groups of each axis that communicates reach, as `inside a node`."""
    from topologies.routing.locality import locality

    grid = prediction.plan.grid
    return {
        axes: locality(machine, placement, grid.groups(*axes.split("+"))).words
        for axes in prediction.comm_bytes
    }
