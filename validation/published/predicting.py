"""Predicting rows: each distinct case once, on several processes where there are many."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from simulator.costs.stack import SoftwareStack
from simulator.gc_pause import gc_paused
from simulator.predict import predict
from topologies.errors import SimgptError
from topologies.machine import Machine
from topologies.placement import scheduler
from validation.published.case import UNSUPPORTED, Case, FindPlan, NoCaseError, case_of
from validation.published.measured_step import measured_s, unscored
from validation.published.outcome import BEST_PLAN, NO_MEASUREMENT, PREDICTED, Outcome
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun
from workload.gpt import GPT
from workload.lowering import structure
from workload.plan import Plan

WORTH_A_POOL = 40  # distinct cases: below that, starting processes takes longer than predicting
AT_ONCE = 8  # neighbours have the same programs; more of them leave a worker idle at the end


@dataclass(frozen=True)
class Task:
    """What decides a prediction; rows that agree in it share one."""

    gpt: GPT
    plan: Plan
    machine: Machine
    kernels: SoftwareStack

    @property
    def signature(self) -> str:
        """Equal for tasks that are predicted alike."""
        unnamed = replace(self.gpt, name="", source="")
        return repr((unnamed, self.plan, self.kernels, self.machine.entries))


@dataclass(frozen=True)
class PredictedRow:
    """A task's prediction, or why there is none."""

    step_s: float = 0.0
    breakdown_s: tuple[tuple[str, float], ...] = ()
    fits: bool = True
    refusal: str = ""


Prepared = tuple[PublishedRun, Case, Machine]


def predict_runs(
    runs: Sequence[PublishedRun], progress: Callable[[str], None], find_plan: FindPlan | None = None
) -> list[Outcome]:
    """An outcome for every row, in their order; none is left out."""
    ready: dict[str, Prepared] = {}
    found: dict[str, Outcome] = {}
    for run in runs:
        try:
            case, machine = case_of(run, find_plan), machine_of(run)
            ready[run.id] = (run, case, machine)
        except NoCaseError as error:
            found[run.id] = _failed(run, error.status, str(error))
        except SimgptError as error:
            found[run.id] = _failed(run, UNSUPPORTED, str(error))
    tasks = {key: Task(c.gpt, c.plan, m, c.kernels) for key, (_, c, m) in ready.items()}
    answers = _answers(tasks, progress)
    found |= {key: _outcome(*ready[key], answers[key]) for key in ready}
    return [found[run.id] for run in runs]


def _failed(run: PublishedRun, status: str, reason: str) -> Outcome:
    measured = run.real("measured_step_s")
    return Outcome(run, status, reason, measured_s=measured, unscored=unscored(run))


def _outcome(run: PublishedRun, case: Case, machine: Machine, answer: PredictedRow) -> Outcome:
    if answer.refusal:
        return _failed(run, UNSUPPORTED, answer.refusal)
    measured = measured_s(run, case.whole, machine)
    parts = {name: seconds * case.scale for name, seconds in answer.breakdown_s}
    return Outcome(
        run=run,
        status=_status(case, measured),
        reason="; ".join(case.remarks),
        plan=str(case.plan),
        dialect=case.dialect,
        measured_s=measured,
        predicted_s=answer.step_s * case.scale,
        unscored=unscored(run),
        fits=answer.fits,
        breakdown_s=parts,
    )


def _status(case: Case, measured: float | None) -> str:
    if case.searched:
        return BEST_PLAN
    return PREDICTED if measured is not None else NO_MEASUREMENT


def _answers(tasks: dict[str, Task], progress: Callable[[str], None]) -> dict[str, PredictedRow]:
    signatures = {key: task.signature for key, task in tasks.items()}
    distinct = {signatures[key]: task for key, task in tasks.items()}
    ordered = sorted(distinct, key=lambda name: structure(distinct[name].gpt, distinct[name].plan))
    progress(f"predicting {len(distinct)} plans for {len(tasks)} rows")
    workers = len(os.sched_getaffinity(0))
    if len(distinct) < WORTH_A_POOL or workers < 2:
        known = {name: answer(distinct[name]) for name in ordered}
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            every = pool.map(answer, (distinct[name] for name in ordered), chunksize=AT_ONCE)
            known = dict(zip(ordered, every, strict=True))
    return {key: known[name] for key, name in signatures.items()}


def answer(task: Task) -> PredictedRow:
    """Predict one task."""
    try:
        with gc_paused():
            placed = scheduler(task.machine, task.plan.grid.ranks)
            found = predict(
                task.gpt, task.plan, task.machine, placement=placed, kernels=task.kernels
            )
    except SimgptError as error:
        return PredictedRow(refusal=str(error))
    return PredictedRow(found.step_s, tuple(found.breakdown_s.items()), found.memory.fits)
