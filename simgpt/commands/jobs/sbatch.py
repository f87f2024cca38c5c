"""`simgpt sbatch`: a job script that runs a plan at a computing centre."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.advice import what_fits
from simgpt.invocation import asked_of_step
from simgpt.question import Question
from simgpt.question_options import asks
from simgpt.sites.job_script import (
    JobRequest,
    job_name,
    job_script,
    limit_of,
    nodes_of,
    one_line,
    seconds_of,
    shell_line,
    slurm_name,
    time_text,
)
from simgpt.sites.launches import LAUNCHES, USUAL
from simgpt.sites.site import NAMES, JobCannotRunError, Site, site_of, sites
from simgpt.step import Step, step_of
from workload.recipes.table import FP8

if TYPE_CHECKING:
    from simulator.predict import Prediction

MOST_STEPS = 10**9


@click.command("sbatch")
@asks(without=("compute", "tokens"), unheeded=("tokens",))
@click.option(
    "--steps", type=click.IntRange(1, MOST_STEPS), default=100, show_default=True, help="To train."
)
@click.option(
    "--time", "limit", help="Time limit as 02:00:00; default: from the predicted steps, with room."
)
@click.option("--account", help="Whom the job is charged to.")
@click.option("--partition", help="Partition of Slurm; default: the site's usual one.")
@click.option(
    "--site", type=click.Choice(NAMES), help="Whose settings are written; default: the machine's."
)
@click.option(
    "--setup", multiple=True, help="A line of shell before the run: 'source env/bin/activate'."
)
@click.option(
    "--launch",
    type=click.Choice(LAUNCHES),
    help="Whose training is run, by settings as simgpt export writes them; default: the stack's.",
)
@click.option(
    "--script",
    help="The training script of --launch; default: pretrain_gpt.py, or DeepSpeed train.py.",
)
@options.answer_options
def command(question: Question, as_json: bool, output: Path | None, **how: Any) -> None:
    """Write a job script for Slurm that runs a plan, one process per device.

    \b
    simgpt sbatch gpt-5b -m frontier -n 64 --plan z=8,dp=rest,recompute=full --batch 64 \\
        --account abc123 -o job.sh
    simgpt sbatch gpt2-xl -m 4x8xH100,8xNDR -n 32 --plan tp=2,dp=rest --batch 64 --time 00:30:00
    simgpt sbatch llama-3.1-8b -m 8x8xH100,8xNDR -n 64 --stack megatron-core \\
        --plan tp=2,dp=rest,mbs=1,sp=true --batch 256

    `simgpt run` trains; under the stacks of Megatron-Core and torchtitan, and with --launch, the
    framework itself does, with variables of data and tokenizer left to fill in.

    The settings of Frontier, Perlmutter, Alps and LUMI are those that the centres document, each
    with its source (simgpt/sites). Comments state the prediction, from which the time limit follows
    if none is given. The job is not submitted.
    """
    step = step_of(question)
    launch = _launch(step, how)
    site = sites()[how["site"]] if how["site"] else site_of(step.machine.name)
    prediction = step.predicted()
    if not prediction.memory.fits:
        remedy = what_fits(prediction, step.machine, step.changed)
        raise JobCannotRunError(f"{step.gpt.name} with {step.plan} {remedy}")
    job = _job(step, prediction, site, how)
    if launch is not None:
        job = _of_framework(job, step, launch, how)
    script = job_script(site.of_devices(step.machine.device.memory_bytes), job)
    record = {
        "site": site.name,
        "nodes": job.nodes,
        "ranks_per_node": job.ranks_per_node,
        "limit_s": job.limit_s,
        "launch": launch,
        "script": script,
        "predicted": prediction.as_dict(),
        **asked_of_step(step),
    }
    options.answer(script, record, as_json=as_json, output=output)
    _comment(site, job, prediction, how["steps"])


def _launch(step: Step, how: dict[str, Any]) -> str | None:
    """The framework that trains, or none for `simgpt run`."""
    stack = step.job.stack
    framework = how["launch"] or USUAL.get(stack.name) or USUAL.get(stack.family)
    known = f"{', '.join(LAUNCHES[:-1])} or {LAUNCHES[-1]}"
    if framework is None and stack.name != "simgpt":
        raise JobCannotRunError(
            f"for the stack {stack.name} no framework's run is known: give --launch {known}, or "
            "--stack simgpt, and `simgpt run` trains"
        )
    if framework is None and step.job.plan.training.recipe == FP8:
        raise JobCannotRunError(f"`simgpt run` trains without fp8; --launch: {known}")
    if framework is None and how["script"] is not None:
        raise click.UsageError(
            f"--script is the training script of a framework: give --launch {known}"
        )
    return str(framework) if framework else None


def _of_framework(job: JobRequest, step: Step, framework: str, how: dict[str, Any]) -> JobRequest:
    """The job with the framework's run, by the settings that `simgpt export` writes."""
    from simgpt.frameworks.exporting import exported_job
    from simgpt.sites.framework_run import framework_run

    exported = exported_job(step.question, step.job, framework)
    for text in exported.notes:
        options.note(text)
    run = framework_run(exported, step.plan, how["steps"], how["script"])
    return replace(job, words=(), program=run.program, prepared=run.prepared, by_torch=True)


def _job(step: Step, prediction: Prediction, site: Site, how: dict[str, Any]) -> JobRequest:
    node, ranks = step.machine.node, step.plan.grid.ranks
    per_node = node.tray or node.devices
    if site.devices_per_node not in (0, per_node):
        raise JobCannotRunError(
            f"nodes of {site.title} have {site.devices_per_node} devices, those of "
            f"{step.machine.name} {per_node}"
        )
    nodes = nodes_of(ranks, per_node)
    steps = how["steps"]
    limit = limit_of(prediction.range.high_s, steps)
    return JobRequest(
        name=job_name(step.gpt.name),
        nodes=nodes,
        ranks_per_node=ranks // nodes,
        is_full=ranks // nodes == per_node,
        segment=step.machine.segments(ranks).trays,
        limit_s=seconds_of(how["limit"]) if how["limit"] is not None else limit,
        words=_words(step, steps),
        about=tuple(_about(step, prediction, steps)),
        setup=tuple(shell_line(line) for line in how["setup"]),
        account=slurm_name(how["account"], "account") if how["account"] is not None else "",
        partition=slurm_name(how["partition"], "partition") if how["partition"] is not None else "",
    )


def _words(step: Step, steps: int) -> tuple[str, ...]:
    """What `simgpt run` is asked: the plan as it was predicted, and the machine to predict beside
    it, unless --set changed that one."""
    asked, plan = step.question, step.plan
    kept = Question(model=asked.model, model_set=asked.model_set, plan=str(plan), batch=plan.batch)
    beside = ["--no-predict"] if asked.set else ["-m", asked.machine]
    return tuple(map(one_line, (*kept.as_words(), "--steps", f"{steps}", *beside)))


def _about(asked: Step, prediction: Prediction, steps: int) -> list[str]:
    """The prediction, in comments."""
    memory, within, step = prediction.memory, prediction.range, tables.seconds(prediction.step_s)
    chosen = asked.job.chosen
    span = tables.between(within.low_s, within.high_s)
    all_s = steps * prediction.step_s
    return [
        f"{prediction.gpt.name} on {tables.several(prediction.devices, 'device')} of "
        f"{prediction.machine}, written by simgpt sbatch",
        f"plan {prediction.plan_text}, "
        f"batch of {tables.several(prediction.plan.batch, 'sequence')}",
        *([f"stack {asked.job.stack.name}, {chosen}; --stack names another"] if chosen else []),
        f"predicted: {step} a step (80 % range: {span}), "
        f"{tables.gib(memory.peak_bytes)} of {tables.gib(memory.capacity_bytes)} per device",
        *([] if memory.is_sure else [memory.words]),
        f"80 % range: {within.words}",
        f"{tables.several(steps, 'step')}: {tables.seconds(all_s)}, "
        f"{tables.hours(steps * prediction.cost.node_s_per_step)} node-hours",
    ]


def _comment(site: Site, job: JobRequest, prediction: Prediction, steps: int) -> None:
    """What the user should know of the script: on stderr."""
    if site.account and not job.account:
        options.note(f"{site.title} charges jobs to a project: give --account, here or to sbatch")
    if job.limit_s < prediction.step_s * steps:
        options.note(
            f"the time limit of {time_text(job.limit_s)} is shorter than the "
            f"{time_text(prediction.step_s * steps)} that {tables.several(steps, 'step')} are "
            "predicted to take"
        )
