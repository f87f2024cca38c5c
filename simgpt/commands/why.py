"""`simgpt why`: what a predicted step waits for, and what would make it faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import noise_options, options, roofline_text, tables
from simgpt.anchors import anchor_option, anchored
from simgpt.commands.predict import comment, remedy_of
from simgpt.commands.prediction_text import anchoring, headline, run_to_run
from simgpt.invocation import asked_of_step
from simgpt.progress import Ticker
from simgpt.question import Question
from simgpt.question_options import asks
from simgpt.step import Step, step_of

if TYPE_CHECKING:
    from simulator.explain.why import Why
    from simulator.predict import Prediction
    from simulator.stacks.job import Job
    from topologies.hardware.run_to_run import Band

LEAST = 0.0005  # of a step: shares and elasticities below are left out of the text
PLANS = 8
NUMBERS = 10  # of an error budget
COLUMN = 34  # characters of the tables' first column
BESIDE_THE_RANGE = (
    "(quote the 80 % range above: it is the error seen on published runs. This budget is only the "
    "uncertainty of the machine's numbers, by their confidence. Do not add the two; either may be "
    "the wider one)"
)


@click.command("why")
@asks(without=("tokens",), unheeded=("tokens",))
@click.option(
    "--all-numbers", is_flag=True, help="Sensitivity to numbers without a unit too: efficiencies."
)
@click.option(
    "--plan-importance",
    is_flag=True,
    help="Shapley values of the plan's fields, over plans of the same devices and batch.",
)
@click.option(
    "--roofline",
    type=options.NewFile(".png", ".svg", ".pdf"),
    help="Print what each kind of op reaches of the device's rates, and draw it into a file.",
)
@anchor_option
@noise_options.noise_options
@options.answer_options
def command(question: Question, as_json: bool, output: Path | None, **how: Any) -> None:
    """Say what a step waits for, what it is sensitive to, and what would make it faster.

    \b
    simgpt why gpt-80b -m frontier -n 8192 --plan z=64,dp=rest,recompute=full --batch 8192
    simgpt why gpt-40b -m perlmutter -n 1024 --plan x=4,z=8,dp=rest,recompute=full \\
        --batch 1024 --json -o why.json

    The critical path is walked back from the step's end. The sensitivity to a number of the machine
    is d ln t / d ln p, from simulating the step with 10 % less and 10 % more of it; machines twice
    as good in one respect and the plans next to this one are simulated too.
    """
    from simulator.explain.why import why

    options.check_apart(output, how["roofline"], "--roofline")
    if how["anchors"]:
        noise_options.refuse(how, "--anchor")
        if how["roofline"] is not None:
            raise click.UsageError("--anchor cannot be combined with --roofline")
    step = step_of(question)
    if step.is_measured:
        raise click.UsageError("--compute measured times one plan's ops, and why predicts others")
    prediction = step.predicted()
    with Ticker() as ticker:
        pure = how["all_numbers"]
        found = why(prediction, step.machine, step.placement, ticker, pure=pure)
    further, fields = _further(step, prediction, how)
    drawn = noise_options.answered(how, prediction, step)
    anchored_step = anchored(step, prediction, how["anchors"])
    if anchored_step.anchoring is not None:
        prediction, found = anchored_step, found.scaled(anchored_step.anchoring)
    remedy = remedy_of(prediction, step)
    runs = step.machine.band("step", prediction.cost.nodes)
    record = {
        **prediction.as_dict(),
        "remedy": remedy or None,
        "software": step.machine.variant or None,
        "run_to_run": runs and runs.as_dict(prediction.step_s),
        **asked_of_step(step),
        "why": found.as_dict() | fields,
        **drawn.record,
    }
    text = describe(found, step.job, remedy, runs) + further + drawn.text
    options.answer(text, record, as_json=as_json, output=output)
    if (figure := how["roofline"]) is not None:
        roofline_text.draw(record, figure)
        options.wrote([figure], str(figure))
    comment(prediction, remedy, output)


def describe(found: Why, job: Job | None = None, remedy: str = "", runs: Band | None = None) -> str:
    """The answer as a person reads it; first of all that a plan does not fit, with its `remedy`,
    then the `job` that was asked for. `runs` is the band of such runs, where it is known."""
    prediction = found.prediction
    within = prediction.range
    span = tables.between(within.low_s, within.high_s)
    return "\n\n".join(
        [
            *([tables.paragraph(f"this plan {remedy}", indent="  ")] if remedy else []),
            headline(prediction, job, f": {tables.seconds(prediction.step_s)} a step"),
            tables.paragraph(f"80 % range: {span}, {within.words}", indent="  "),
            *anchoring(prediction),
            *run_to_run(prediction, runs),
            tables.paragraph(found.sentence),
            _losses(found),
            _shares(found),
            _sensitivity(found),
            _budget(found),
            _better(found),
            *_bends(found),
            _plans(found),
        ]
    )


def _further(
    step: Step, prediction: Prediction, how: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """What is answered only where it is asked for, as text and for the answer's JSON."""
    importance, fields = _importance(step, how["plan_importance"])
    roofline, kinds = _roofline(step, prediction, wanted=how["roofline"] is not None)
    return importance + roofline, fields | kinds


def _importance(step: Step, wanted: bool) -> tuple[str, dict[str, Any]]:
    """The importance of the plan's fields as text and for the answer's JSON, if it is wanted."""
    from simulator.explain.plan_importance import plan_importance

    if not wanted:
        return "", {}
    job = step.job
    with Ticker() as ticker:
        found = plan_importance(job.gpt, job.plan, step.machine, step.placement, job.stack, ticker)
    rows = [(field, tables.percent(share)) for field, share in found.shares.items()]
    text = tables.table(["field of the plan", "share of the variance"], rows, first=COLUMN)
    plans = f"{found.plans:,} plans that fit, of {found.space:,} legal ones"
    about = (
        f"(Shapley values, of the logarithm of the step's time; {plans}; {found.unfit:,} more were "
        f"drawn and do not fit; the slowest takes {found.spread:,.3g} times as long as the "
        f"fastest, {found.fastest_text})"
    )
    return f"\n\n{text}\n{tables.paragraph(about)}", {"plan_importance": found.as_dict()}


def _roofline(step: Step, prediction: Prediction, *, wanted: bool) -> tuple[str, dict[str, Any]]:
    """The roofline as text and for the answer's JSON, if it is wanted."""
    from simulator.explain.roofline import roofline

    if not wanted:
        return "", {}
    found = roofline(prediction, step.machine, step.placement)
    text = roofline_text.describe(found, prediction.plan.pp)
    return f"\n\n{text}", {"roofline": found.as_dict()}


def _losses(found: Why) -> str:
    from simulator.explain.mfu_waterfall import waterfall_rows

    rows = waterfall_rows(found.mfu.as_dict())
    columns = ["MFU waterfall", "change", "left", "what would win it back (MFU with it)"]
    cells = [(name, change, left, remedy) for name, remedy, change, left in rows]
    return tables.table(columns, cells, first=COLUMN, remarks=True)


def _shares(found: Why) -> str:
    from simulator.explain.why import PATH

    step_s = found.shares.step_s
    rows = [
        (found.place(cause), tables.seconds(seconds), tables.percent(seconds / step_s))
        for cause, seconds in found.shares.seconds.items()
        if seconds / step_s >= LEAST
    ]
    table = tables.table([PATH, "time", "share"], rows, first=COLUMN)
    return f"{table}\n({found.shares.basis})"


def _sensitivity(found: Why) -> str:
    rows = [
        (each.parameter.name, each.parameter.text, f"{each.value:+.3f}")
        for each in found.elasticities
        if abs(each.value) >= LEAST
    ]
    columns = ["sensitivity (for --set)", "value", "d ln t / d ln p"]
    text = tables.table(columns, rows, first=COLUMN)
    silent = len(found.elasticities) - len(rows)
    return f"{text}\n({tables.several(silent, 'other')}: below {LEAST:g})"


def _budget(found: Why) -> str:
    """The numbers by which the step may change most, and how sure they are."""
    budget = found.budget
    worth = [each for each in budget.items if each.share >= LEAST]
    rows = [
        (
            each.key,
            each.text,
            f"{each.confidence or 'not stated'}, {tables.percent(each.error)}",
            tables.percent(each.share),
        )
        for each in worth[:NUMBERS]
    ]
    left = math.hypot(*(each.share for each in budget.items[len(rows) :]))
    rows.append(("all others together", "", "", tables.percent(left)))
    rows.append(("root of the sum of squares", "", "", tables.percent(budget.total)))
    title = "error budget"
    columns = [title, "value", "confidence, error", "of the step"]
    return f"{tables.table(columns, rows, first=COLUMN)}\n{tables.paragraph(BESIDE_THE_RANGE)}"


def _better(found: Why) -> str:
    rows = [
        (each.words, tables.seconds(each.step_s), tables.percent(each.saving))
        for each in found.better
    ]
    return tables.table(["if the hardware were 2x better", "step", "saves"], rows, first=COLUMN)


def _bends(found: Why) -> list[str]:
    """Where what a change saves is not its own doing alone."""
    if not found.bends:
        return []
    why = "Where the library's tuner switches algorithms, the step's time jumps, up or down:"
    return ["\n".join([why, *(tables.paragraph(each, indent="  ") for each in found.bends)])]


def _plans(found: Why) -> str:
    rows = [
        (each.words, tables.seconds(each.step_s), tables.percent(each.saving))
        for each in found.plans[:PLANS]
    ]
    text = tables.table(["neighbouring plans", "step", "saves"], rows, first=COLUMN)
    tried = tables.several(len(found.plans) + found.unfit, "neighbouring plan")
    unfit = f", {found.unfit:,} of which do not fit into memory" if found.unfit else ""
    return f"{text}\n({tried} tried{unfit})"
