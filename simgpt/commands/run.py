"""`simgpt run`: the same program, for real."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.advice import what_fits
from simgpt.arguments import training
from simgpt.arguments.device_use import check_device_use, device_use_of, device_use_options
from simgpt.arguments.goldfish import goldfish_options, with_goldfish
from simgpt.invocation import ran
from simgpt.question import Question
from simgpt.question_options import asks
from simgpt.running.calibrated import machine_for
from simgpt.running.checkpointing import checkpoint_options, owning, saving_of
from simgpt.running.conversion import convert_weights
from simgpt.running.dry_run import check_rank_is_dry, dry_run
from simgpt.running.host_load import warn_of_measured
from simgpt.running.launched import join, ranks_of, said_by_rank_0
from simgpt.running.measured_steps import MeasuredSteps
from simgpt.running.restarting import with_restarts
from simgpt.running.routing_out import check_routing_out, routing_out_option, write_routing
from simgpt.running.step_log import Sink, Unwritten, entry_of, ignored, written_to
from simgpt.running.trained import check_finished, record_of, summary, write_trace
from simgpt.running.weights import check_weights, exporting, tell_exported, weights_options
from simgpt.step import Sources, plan_of_run
from workload.errors import PlanCannotRunError
from workload.recipes.table import check_runs
from workload.recomputation import parts

if TYPE_CHECKING:
    from executor.launching.launch_env import RankInfo
    from executor.launching.task_specs import Job
    from simulator.predict import Prediction
    from topologies.machine import Machine

MOST_SEED = 2**32


@click.command("run")
@asks(
    *("model", "model_set", "machine", "plan", "batch"),
    unheeded=("placement", "tokens"),
    machine={"required": False, "help": "Machine to predict on; default: this one, measured once."},
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="Ranks to start on this machine; default: those of the plan, or 1.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Steps to train; 0 converts weights alone.",
)
@training.data_options
@training.update_options
@training.evaluation_options
@click.option(
    "--seed",
    type=click.IntRange(0, MOST_SEED),
    default=0,
    show_default=True,
    help="Chooses the initial weights and the batches.",
)
@weights_options
@goldfish_options
@options.device_option
@device_use_options
@options.threads_option
@options.timeout_option
@click.option("--recalibrate", is_flag=True, help="Measure this machine anew to predict with.")
@click.option("--no-predict", is_flag=True, help="Do not predict beside the measurement.")
@click.option(
    "--trace",
    type=options.NewFile(),
    help="Write the last step's measured and predicted timelines for ui.perfetto.dev.",
)
@routing_out_option
@training.log_options
@click.option(
    "--dry", is_flag=True, help="Play one rank without its machine: shapes, groups, order, bytes."
)
@click.option("--rank", type=click.IntRange(min=0), help="The rank that --dry plays; default: 0.")
@options.answer_options
@checkpoint_options
def command(
    question: Question, text: str | None, as_json: bool, output: Path | None, **how: Any
) -> None:
    """Train for real with torch.distributed, a line per step with predicted beside measured.

    \b
    simgpt run tiny-2m --plan dp=2 --ranks 2 --steps 20
    torchrun --nproc-per-node 4 -m simgpt run gpt2 --plan tp=2,dp=2 --batch 16 --steps 20

    Starts --ranks processes on this machine, or joins those that torchrun or srun started. Without
    -m, this machine is measured once, in about a minute, to predict with. Ctrl-C, SIGTERM and
    SIGUSR1 end training a few steps later, saved with --save, with its summary, JSON and trace,
    and status 130, 143 or 138.
    """
    from executor.launching.launch_env import RankInfo

    if how["dry"]:
        return dry_run(question, as_json=as_json, output=output, how=how)
    check_rank_is_dry(how)
    if how["steps"] == 0:
        return convert_weights(question, as_json=as_json, output=output, how=how)
    info = RankInfo.from_environment(os.environ)
    with said_by_rank_0(info):
        _check_files(output, how)
        checked = _checked_job(question, text, info, how)
    is_first, unwritten = info is None or not info.rank, Unwritten()
    leaves = checked.export_weights
    with owning(checked, info) as (owned, saves), exporting(leaves, info) as exports:
        with said_by_rank_0(info):
            job, prediction = _prepared(owned, question.machine, info, how)
        measured = MeasuredSteps(job, output, unwritten, as_json=as_json, writes=is_first)
        with (
            _log(how, job, unwritten) if is_first else nullcontext(ignored) as write,
            measured.kept_if_lost(),
        ):
            report = _reporter(job, prediction, measured, write, unwritten, quiet=as_json)
            result = _perform(
                job, info, report, measured, restarts=how["max_restarts"], held=(*saves, *exports)
            )
    if not is_first:
        return None
    with unwritten.noted("--trace"):
        write_trace(how["trace"], job, result, prediction)
    with unwritten.noted("--routing-out"):
        write_routing(how["routing_out"], job, result)
    record = record_of(job, result, prediction, measured.steps) | ran()
    tell_exported(record)
    _answer(summary(record, prediction), record, unwritten, as_json=as_json, output=output)
    warn_of_measured(record, calibrated=not question.machine)
    check_finished(record, job, unwritten)


def _answer(
    text: str, record: dict[str, Any], unwritten: Unwritten, *, as_json: bool, output: Path | None
) -> None:
    """Give the answer; where its file cannot be written, on stdout."""
    if output is not None:
        with unwritten.noted("-o"):
            options.answer(text, record, as_json=as_json, output=output)
            unwritten.made_up("-o")
            return
    options.answer(text, record, as_json=as_json, output=None)


def _checked_job(
    question: Question, text: str | None, info: RankInfo | None, how: dict[str, Any]
) -> Job:
    """The job that every rank is told, once all that it reads is known to suit it."""
    from executor.data.identity import text_digest, tokenizer_digest
    from executor.data.sources import check_data, read_data
    from executor.launching.launch import require_torch
    from workload.lowering.four_bits import check_four_bits_of

    require_torch()
    job = _job(question, text, info, how)
    parts.check_runs(job.plan.training.recompute)
    check_runs(job.plan, saves=job.saving is not None)
    check_four_bits_of(job.gpt, job.plan)
    check_device_use(job, traced=how["trace"] is not None)
    check_data(read_data(text, job.tokenizer), job.gpt)
    if job.held_out is not None:
        job.held_out.read(job.gpt, job.plan)
    if job.saving is None:
        return job
    of_tokenizer = tokenizer_digest(job.tokenizer)
    return replace(job, text_sha256=text_digest(text), tokenizer_sha256=of_tokenizer)


def _prepared(
    job: Job, machine: str, info: RankInfo | None, how: dict[str, Any]
) -> tuple[Job, Prediction | None]:
    """The job with what it goes on from checked, and what is predicted of it."""
    from executor.checkpoints.belonging import check_before

    check_before(job)
    predicts, again = not how["no_predict"], how["recalibrate"]
    built = machine_for(job, machine or None, info, predicts=predicts, again=again)
    job = _with_forms(job, built)
    return job, _predict(job, built, info) if predicts else None


def _check_files(output: Path | None, how: dict[str, Any]) -> None:
    for option in ("trace", "log", "routing_out"):
        options.check_apart(output, how[option], f"--{option.replace('_', '-')}")
    options.check_apart(how["log"], how["trace"], first="--log")
    leaves = how["export_weights"] and Path(how["export_weights"])
    options.check_apart(how["save"], leaves, "--export-weights", first="--save")
    if how["tensorboard"] is not None:
        from executor.training.tensorboard import require_tensorboard

        require_tensorboard()


def _log(how: dict[str, Any], job: Job, unwritten: Unwritten) -> AbstractContextManager[Sink]:
    """What takes the log's lines; a run that goes on, also because it is started again, goes on
    with its file."""
    goes_on = job.saving is not None and job.saving.resume
    return written_to(how["log"], how["tensorboard"], unwritten, goes_on=goes_on)


def _job(question: Question, text: str | None, info: RankInfo | None, how: dict[str, Any]) -> Job:
    """What every rank is told, once the plan is known to suit the model and the ranks."""
    from executor.launching.devices import device_for
    from executor.launching.launch import check_ranks
    from executor.launching.task_specs import Job
    from workload.lowering import check

    ranks = ranks_of(how["ranks"], info)
    gpt = Sources(tells=info is None or not info.rank).model(question)
    gpt = with_goldfish(gpt, how["goldfish_k"], how["goldfish_h"])
    plan = plan_of_run(question, ranks)
    if info is None:
        check_ranks(plan.grid.ranks)
    check(gpt, plan)
    training.check_update(plan)
    check_weights(gpt, how["from_weights"], how["export_weights"], info)
    device = how["device"]
    device = device if info else device_for(device, plan.grid.ranks, options.note)
    return Job(
        gpt=gpt,
        plan=plan,
        steps=how["steps"],
        seed=how["seed"],
        text=text,
        tokenizer=how["tokenizer"],
        threads=how["threads"],
        timeout_s=how["timeout_s"],
        device=device,
        adamw=training.adamw_of(how),
        schedule=training.schedule_of(how),
        held_out=training.held_out_of(how),
        from_weights=how["from_weights"],
        export_weights=how["export_weights"],
        saving=saving_of(how, info),
        device_use=device_use_of(how),
        counts_experts=check_routing_out(gpt, how),
    )


def _with_forms(job: Job, built: Machine | None) -> Job:
    """The job with the matmul forms that are fastest on the machine, if its plan tunes them."""
    from simulator.predict import forms_on

    if built is None:
        return job
    return replace(job, forms=tuple(forms_on(job.gpt, job.plan, built).items()))


def _predict(job: Job, built: Machine | None, info: RankInfo | None) -> Prediction | None:
    """The prediction beside the first rank's measurement, if the machine is known."""
    from simulator.predict import predict

    if built is None or (info is not None and info.rank):
        return None
    prediction = predict(job.gpt, job.plan, built, timeline=True)
    if not prediction.memory.fits:
        why = what_fits(prediction, built)
        raise PlanCannotRunError(f"{job.gpt.name} with {job.plan} {why}")
    return prediction


def _reporter(
    job: Job,
    prediction: Prediction | None,
    measured: MeasuredSteps,
    write: Sink,
    unwritten: Unwritten,
    *,
    quiet: bool,
) -> Callable[[dict[str, Any]], None]:
    predicted_s = prediction.step_s if prediction is not None else None
    beside = f"   predicted {tables.seconds(prediction.step_s)}" if prediction is not None else ""
    digits = len(str(job.steps))

    def report(step: dict[str, Any]) -> None:
        if "note" in step:
            options.note(step["note"])
        if "step" not in step:  # weights are being read or written, or a batch is evaluated
            return
        number = f"step {step['step']:>{digits}}/{job.steps}"
        took = f"measured {tables.seconds(step['seconds']):>7}"
        line = f"{number}   loss {step['loss']:.4f}   {took}{beside}"
        if "eval_loss" in step:
            line += f"   evaluation {step['eval_loss']:.4f}"
        with unwritten.noted("stdout"):
            (options.note if quiet else options.say)(line)
        write(entry_of(step, job, predicted_s))
        measured.add(step, line)

    return report


def _perform(
    job: Job,
    info: RankInfo | None,
    report: Callable[[dict[str, Any]], None],
    measured: MeasuredSteps,
    *,
    restarts: int,
    held: tuple[int, ...],
) -> dict[str, Any]:
    if info is not None:
        return join(job, info, report if info.rank == 0 else lambda _: None, measured.lost)
    from executor.launching.launch import launch
    from executor.launching.task_specs import task_line

    def attempt(job: Job, on_interrupt: Callable[[], None]) -> dict[str, Any]:
        return launch(
            "train",
            task_line(job),
            ranks=job.plan.grid.ranks,
            report=report,
            timeout_s=job.timeout_s,
            on_interrupt=on_interrupt,
            held=held,
        )

    return with_restarts(attempt, job, restarts)
