"""A measured job, from its log or trace, beside the prediction of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simgpt.step import Step

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from validation.jobs.anatomy import Anatomy
    from validation.jobs.comparison import JobComparison


def compared(
    step: Step, prediction: Prediction, log: Path, warm_up: int | None = None
) -> JobComparison:
    """A job's log or trace beside the prediction of a step, which need not be that of the
    job."""
    from validation.jobs.comparison import JobComparison
    from validation.jobs.measured_job import statistics
    from validation.jobs.reading import read_job
    from validation.jobs.step_lines import Job

    plan = step.plan
    job, rank = read_job(log, Job(plan.batch, step.gpt.sequence, plan.grid.ranks))
    told, remarks = (None, []) if job.anatomy is None else _anatomy(step, rank)
    return JobComparison(
        job=replace(job, remarks=(*job.remarks, *remarks)),
        steps=statistics(job, warm_up),
        prediction=prediction,
        anatomy=told,
        batch=plan.batch,
        sizes=_sizes(step),
    )


def _sizes(step: Step) -> dict[str, int]:
    """The sizes of the step as logs name them."""
    from validation.jobs import logged_sizes as names

    gpt, plan = step.gpt, step.plan
    return {
        names.TENSOR: plan.tp * plan.y * plan.z,
        names.PIPELINE: plan.pp,
        names.CONTEXT: plan.cp,
        names.MICRO_BATCH: plan.mbs,
        names.SEQUENCE: gpt.sequence,
        names.LAYERS: gpt.layers,
        names.HIDDEN: gpt.hidden,
        names.HEADS: gpt.attention.heads,
        names.FFN: gpt.ffn,
    }


def _anatomy(step: Step, rank: int) -> tuple[Anatomy | None, list[str]]:
    """The anatomy of the predicted step on a rank's stage; why there is none, where it is too
    long."""
    from validation.jobs.anatomy import predicted_anatomy
    from workload.errors import PlanCannotRunError

    grid = step.plan.grid
    if rank >= grid.ranks:
        return None, [f"the trace is of rank {rank:,}, and the plan has {grid.ranks:,} ranks"]
    try:
        prediction = step.predicted(timeline=True)
    except PlanCannotRunError as error:
        return None, [f"the predicted step has no parts to compare: {error}"]
    assert prediction.timeline is not None
    stage = grid.coordinates(rank)["pp"]
    return predicted_anatomy(prediction.timeline, grid, stage), []
