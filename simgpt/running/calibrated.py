"""The machine that a run is predicted on: a given one, or this one as it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from simgpt import options
from simgpt.progress import Ticker
from simgpt.running.host_load import warn_if_busy
from workload.exchange.table import DISPATCHERS
from workload.recipes.table import NO_RECIPE

if TYPE_CHECKING:
    from executor.launching.launch_env import RankInfo
    from executor.launching.task_specs import Job
    from topologies.machine import Machine
    from workload.plan import Plan


def machine_for(
    job: Job, machine: str | None, info: RankInfo | None, *, predicts: bool, again: bool
) -> Machine | None:
    """The given machine, or this one as it was measured once, or `again`, where something is to be
    known of it.

    To choose matmul forms every rank must know it, to predict only the first, which measures the
    node while those that a launcher started wait for it.
    """
    tunes = job.plan.training.matmul_forms == "tuned"
    if not tunes and not (predicts and (info is None or not info.rank)):
        return None
    if machine is not None:
        return options.machine_of(machine)
    if tunes and info is not None:
        raise click.UsageError(
            "matmul_forms=tuned on ranks that a launcher started needs -m FILE, from which all "
            "make the same choice; `simgpt calibrate -o FILE` writes it"
        )
    if why := _not_measured(info, job.plan):
        options.note(f"nothing is predicted beside the measurement: {why}; give -m FILE")
        return None
    return _calibrated(job, again=again)


def _not_measured(info: RankInfo | None, plan: Plan) -> str:
    """Why rank 0 cannot measure what a prediction needs; empty if it can."""
    if plan.training.recipe != NO_RECIPE:
        return (
            f"matmuls of recipe={plan.training.recipe} are emulated here, at no rate of a device's"
        )
    if plan.ep > 1 and DISPATCHERS[plan.experts.dispatcher].once:
        return f"exchanges of dispatcher={plan.experts.dispatcher} are measured nowhere here"
    if info is None:
        return ""
    if info.local_ranks < info.ranks:
        return "ranks are on several nodes, whose network is not measured"
    return "each rank sees one GPU alone" if info.bound else ""


def _calibrated(job: Job, *, again: bool) -> Machine:
    """This machine by its quick calibration, made if it is not there yet."""
    from executor.calibrating.calibrate import cached
    from executor.launching.devices import device_for
    from executor.launching.task_specs import Calibration

    ranks = job.plan.grid.ranks
    task = Calibration(
        precisions=(job.plan.training.precision,),
        quick=True,
        threads=job.threads,
        device=device_for(job.device, ranks, lambda _: None),
    )
    warn_if_busy()
    with Ticker() as ticker:
        return cached(task, ranks, ticker, announce=options.note, again=again)
