"""`simgpt sbatch`: a job script that runs a plan at a computing centre."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.advice import what_fits
from simgpt.arguments.model import model_of
from simgpt.invocation import asked as answered
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
from simgpt.step_options import StepQuestion, question_of, step_options
from workload.recipes.table import FP8

if TYPE_CHECKING:
    from simulator.predict import Prediction

MOST_STEPS = 10**9


@click.command("sbatch")
@click.argument("model")
@step_options
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
def command(model: str, machine: str, as_json: bool, output: Path | None, **how: Any) -> None:
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
    question = question_of(model, machine, how)
    launch = _launch(question, how)
    site = sites()[how["site"]] if how["site"] else site_of(question.machine.name)
    prediction = question.predicted()
    if not prediction.memory.fits:
        remedy = what_fits(prediction, question.machine, question.changed)
        raise JobCannotRunError(f"{question.gpt.name} with {question.plan} {remedy}")
    job = _job(question, prediction, site, (model, machine), how)
    if launch is not None:
        job = _of_framework(job, question, launch, model, how)
    script = job_script(site.of_devices(question.machine.device.memory_bytes), job)
    record = {
        "site": site.name,
        "nodes": job.nodes,
        "ranks_per_node": job.ranks_per_node,
        "limit_s": job.limit_s,
        "launch": launch,
        "script": script,
        "predicted": prediction.as_dict(),
        **answered(model, machine, how, prediction.plan.training.recipe),
    }
    options.answer(script, record, as_json=as_json, output=output)
    _comment(site, job, prediction, how["steps"])


def _launch(question: StepQuestion, how: dict[str, Any]) -> str | None:
    """The framework that trains, or none for `simgpt run`."""
    stack = question.job.stack
    framework = how["launch"] or USUAL.get(stack.name) or USUAL.get(stack.family)
    known = f"{', '.join(LAUNCHES[:-1])} or {LAUNCHES[-1]}"
    if framework is None and stack.name != "simgpt":
        raise JobCannotRunError(
            f"for the stack {stack.name} no framework's run is known: give --launch {known}, or "
            "leave --stack out, and `simgpt run` trains"
        )
    if framework is None and question.job.plan.training.recipe == FP8:
        raise JobCannotRunError(f"`simgpt run` trains without fp8; --launch: {known}")
    if framework is None and how["script"] is not None:
        raise click.UsageError(
            f"--script is the training script of a framework: give --launch {known}"
        )
    return str(framework) if framework else None


def _of_framework(
    job: JobRequest, question: StepQuestion, framework: str, model: str, how: dict[str, Any]
) -> JobRequest:
    """The job with the framework's run, by the settings that `simgpt export` writes."""
    from simgpt.frameworks.exporting import Asked, exported_job
    from simgpt.sites.framework_run import framework_run
    from workload.descriptions.read import described_model

    gpt = model_of(model, how["model_fields"], tells=False)
    batch = options.batch_of(how["batch"], how["batch_tokens"], gpt, how["devices"])
    beyond = described_model(model).beyond
    asked = Asked(gpt, options.plan_table(how["plan"]), how["devices"], batch, beyond)
    exported = exported_job(asked, question.job, framework)
    for text in exported.notes:
        options.note(text)
    run = framework_run(exported, question.plan, how["steps"], how["script"])
    return replace(job, words=(), program=run.program, prepared=run.prepared, by_torch=True)


def _job(
    question: StepQuestion,
    prediction: Prediction,
    site: Site,
    names: tuple[str, str],
    how: dict[str, Any],
) -> JobRequest:
    node, ranks = question.machine.node, question.plan.grid.ranks
    per_node = node.tray or node.devices
    if site.devices_per_node not in (0, per_node):
        raise JobCannotRunError(
            f"nodes of {site.title} have {site.devices_per_node} devices, those of "
            f"{question.machine.name} {per_node}"
        )
    nodes = nodes_of(ranks, per_node)
    steps = how["steps"]
    limit = limit_of(prediction.range.high_s, steps)
    return JobRequest(
        name=job_name(question.gpt.name),
        nodes=nodes,
        ranks_per_node=ranks // nodes,
        is_full=ranks // nodes == per_node,
        segment=question.machine.segments(ranks).trays,
        limit_s=seconds_of(how["limit"]) if how["limit"] is not None else limit,
        words=_words(question, *names, how),
        about=tuple(_about(prediction, steps)),
        setup=tuple(shell_line(line) for line in how["setup"]),
        account=slurm_name(how["account"], "account") if how["account"] is not None else "",
        partition=slurm_name(how["partition"], "partition") if how["partition"] is not None else "",
    )


def _words(
    question: StepQuestion, model: str, machine: str, how: dict[str, Any]
) -> tuple[str, ...]:
    """What `simgpt run` is asked: the plan as it was predicted, and the machine to predict beside
    it, unless --set changed that one."""
    fields = [word for field in how["model_fields"] for word in ("--model-set", field)]
    plan, steps = question.plan, how["steps"]
    beside = ["--no-predict"] if how["settings"] else ["-m", machine]
    words = [model, *fields, "--plan", str(plan), "--batch", f"{plan.batch}", "--steps", f"{steps}"]
    return tuple(map(one_line, (*words, *beside)))


def _about(prediction: Prediction, steps: int) -> list[str]:
    """The prediction, in comments."""
    memory, within, step = prediction.memory, prediction.range, tables.seconds(prediction.step_s)
    span = tables.between(within.low_s, within.high_s)
    all_s = steps * prediction.step_s
    return [
        f"{prediction.gpt.name} on {tables.several(prediction.devices, 'device')} of "
        f"{prediction.machine}, written by simgpt sbatch",
        f"plan {prediction.plan_text}, "
        f"batch of {tables.several(prediction.plan.batch, 'sequence')}",
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
