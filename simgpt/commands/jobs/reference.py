"""`simgpt compare --reference`: from another job to the measured one, cause by cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import tables
from simgpt.anchors import read_anchor
from simgpt.question import Question
from simgpt.step import Sources, Step, step_of
from topologies.errors import SimgptError
from topologies.files.printable import shown
from topologies.files.units import quantity
from topologies.records import record

if TYPE_CHECKING:
    from simulator.explain.waterfall import Side, Waterfall
    from simulator.predict import Prediction
    from validation.jobs.comparison import JobComparison

TERA = 1e12
# Fields that the question of a reference may have: the waterfall has no cause for the others.
SUPPORTED = (
    *("model", "machine", "devices", "batch", "batch_tokens", "plan", "stack", "placement"),
    "tokens",
)
WIDEST = 60  # characters of a cause
LEAST = 0.05  # of a rate in TFLOP/s, of a share in percent: what is less is printed as 0.0


class NoReferenceError(SimgptError):
    """A reference that is not known, or cannot be predicted."""


@record(slots=False)
class Reference:
    """The job from which changes start: its name, its step, and its measured model FLOP/s per
    device or seconds per step, if either is known."""

    name: str
    step: Step
    reached: float | None = None
    step_s: float | None = None


def reached_of(text: str | None) -> float | None:
    """FLOP/s from a text such as `420 TFLOP/s`; raises a usage error for another text."""
    if text is None:
        return None
    try:
        return quantity(text, "FLOP/s")
    except SimgptError as error:
        raise click.UsageError(f"--reached: {error}") from None


def reference_of(text: str, reached: float | None, step: Step) -> Reference:
    """What `--reference` names: an anchor's file, a published run, or keys of a plan that differ
    from those of the job's step."""
    if text.endswith(".toml"):
        return _of_anchor(Path(text), reached)
    if "=" in text:
        return Reference(f"the job with {text}", _with_plan(step, text), reached)
    return _of_row(text, reached)


def _of_anchor(path: Path, reached: float | None) -> Reference:
    anchor = read_anchor(path)
    if odd := [each for each in anchor.question.given if each not in SUPPORTED]:
        raise NoReferenceError(f"{anchor.name} has {odd[0]}, which a reference does not support")
    step = step_of(anchor.question, Sources(tells=False))
    return Reference(anchor.name, step, reached, anchor.step_s)


def _of_row(name: str, reached: float | None) -> Reference:
    from validation.published.commands import NoCommandError, question_of_run
    from validation.published.measured_step import measured_s
    from validation.published.runs import read_runs

    run = next((each for each in read_runs() if each.id == name), None)
    if run is None:
        raise NoReferenceError(
            f"--reference {shown(name)} is not an anchor (FILE.toml), keys of a plan (tp=8,pp=2) "
            "or a published run; simgpt validate published --json lists the runs"
        )
    try:
        question = Question.of(**question_of_run(run))
    except NoCommandError as error:
        raise NoReferenceError(f"--reference {name}: {error}") from None
    step = step_of(question, Sources(tells=False))
    return Reference(name, step, reached, measured_s(run, step.gpt, step.machine))


def _with_plan(step: Step, text: str) -> Step:
    """The job's step with some keys of another plan, or another `stack`. With other devices the
    batch per device stays the same, if it can."""
    from simulator.stacks import load_stack
    from simulator.stacks.job import job_of
    from topologies.placement import with_room
    from topologies.placement_names import parse_placement
    from workload.plan_text import plan_words, split_plan

    job, keys = step.job, split_plan(text)
    stack = load_stack(keys.pop("stack")) if "stack" in keys else job.stack
    own, given = split_plan(job.stack.text(job.plan)), plan_words(keys)
    words = {**own, **given}
    devices: int | None = job.plan.grid.ranks
    if "dp" not in given:
        words["dp"] = "rest"
    elif given["dp"] != "rest":
        devices = None
    batch = job.plan.batch
    made = job_of(job.gpt, words, stack, devices=devices, batch=None)
    scaled, rest = divmod(batch * made.plan.grid.ranks, job.plan.grid.ranks)
    if "batch" not in given:
        batch = scaled if scaled and not rest else batch
        words["batch"] = batch
    made = job_of(job.gpt, words, stack, devices=devices)
    machine = with_room(step.machine, made.plan.grid.ranks)
    placement = parse_placement("scheduler", machine, made.plan.grid.ranks)
    return replace(step, job=made, machine=machine, placement=placement)


def waterfall_of(
    reference: Reference, found: JobComparison, step: Step, placement: str
) -> Waterfall:
    """The changes from a reference to a compared job. Rates are the log's if the reference's rate
    is given too; otherwise both are by simgpt's count of FLOPs."""
    from simulator.explain.waterfall import waterfall

    prediction, steps = found.prediction, found.steps
    ours = prediction.model_flops_per_s_per_device * prediction.step_s / steps.median_s
    measured = steps.flops_per_s if reference.reached and steps.flops_per_s else ours
    reached = reference.reached
    if reached is None and reference.step_s is not None:
        told = reference.step.predicted()
        reached = told.model_flops_per_s_per_device * told.step_s / reference.step_s
    sides = _of_one_size(_side(reference.step), _side(step))
    return waterfall(
        *sides,
        partial(_predict, placement),
        measured=measured,
        reached=reached,
    )


def _side(step: Step) -> Side:
    from simulator.explain.waterfall import Side

    job = step.job
    return Side(job.gpt, job.plan, step.machine, step.question.machine, job.stack)


def _of_one_size(reference: Side, job: Side) -> tuple[Side, Side]:
    """Both sides on the larger machine, if the two differ only in their number of nodes."""
    parts = [re.fullmatch(r"\d+x(.+)", side.machine_name) for side in (reference, job)]
    rest = {part[1].lower() if part else "" for part in parts}
    if len(rest) > 1 or "" in rest:
        return reference, job
    larger = max(reference, job, key=lambda side: side.machine.nodes)
    name, machine = larger.machine_name, larger.machine
    return (
        replace(reference, machine_name=name, machine=machine),
        replace(job, machine_name=name, machine=machine),
    )


def _predict(policy: str, side: Side) -> Prediction:
    from simulator.predict import predict as predicted
    from topologies.placement import with_room
    from topologies.placement_names import parse_placement

    ranks = side.plan.grid.ranks
    machine = with_room(side.machine, ranks)
    placement = parse_placement(policy, machine, ranks)
    return predicted(side.gpt, side.plan, machine, placement=placement, stack=side.stack)


def described(found: Waterfall, name: str) -> str:
    """The changes as text: a sentence, and a table whose printed numbers add up."""
    rows = list(_rows(found, name))
    kind = "published or measured" if found.factor != 1 else "predicted"
    head = f"{name}: {_tera(found.reference)} TFLOP/s {kind}, this job {_tera(found.measured)}"
    *causes, rest = _shares(found)
    parts = [*sorted(causes, key=lambda each: -abs(each[1])), rest]
    said = [f"{words} {share:+.1f} %" for words, share in parts if abs(share) >= LEAST]
    sentence = tables.paragraph(f"{head}: {', '.join(said)}" if said else head)
    columns = ["from the reference to this job", "TFLOP/s", "change", "of the reference"]
    return f"{sentence}\n\n{tables.table(columns, rows, first=34)}"


def _rows(found: Waterfall, name: str) -> Iterator[tuple[str, str, str, str]]:
    """Rows of rounded rates, with changes that are the differences of the printed rates."""
    from simulator.explain.waterfall import UNEXPLAINED

    yield shown(name)[:WIDEST], _tera(found.reference), "", ""
    shares = dict(_shares(found))
    for each in found.falls:
        before, after = (round(rate / TERA, 1) for rate in (each.before, each.after))
        share = f"{shares[each.words]:+.1f} %"
        if abs(after - before) < LEAST and each.words != UNEXPLAINED:
            continue
        yield shown(each.words, WIDEST), f"{after:.1f}", f"{after - before:+.1f}", share
    whole = round(found.measured / TERA, 1) - round(found.reference / TERA, 1)
    total = round(100 * found.measured / found.reference, 1) - 100
    yield "this job", _tera(found.measured), f"{whole:+.1f}", f"{total:+.1f} %"


def _shares(found: Waterfall) -> list[tuple[str, float]]:
    """The changes in percent of the reference, rounded so that they add up."""
    percent = [round(100 * each.before / found.reference, 1) for each in found.falls]
    percent.append(round(100 * found.measured / found.reference, 1))
    return [(each.words, percent[at + 1] - percent[at]) for at, each in enumerate(found.falls)]


def _tera(rate: float) -> str:
    return f"{rate / TERA:.1f}"


def options_of(how: Mapping[str, Any]) -> tuple[str | None, float | None]:
    """The reference and its rate from the options; raises a usage error for --reached alone."""
    if how["reached"] is not None and how["reference"] is None:
        raise click.UsageError("--reached needs --reference")
    return how["reference"], reached_of(how["reached"])
