"""Predicting rows: each distinct case once, on several processes where there are many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any

from simulator.pool import LostError, Pool
from simulator.predict import predict
from simulator.stacks import Stack
from simulator.stacks.job import Job
from simulator.uncertainty.anchors import Place
from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus
from topologies.machine import Machine
from topologies.placement import scheduler
from topologies.records import record
from topologies.session import Session, gc_paused
from validation.published.baselines import ideal_of
from validation.published.case import (
    NO_PLAN,
    UNSUPPORTED,
    Case,
    FindPlan,
    NoCaseError,
    case_of,
)
from validation.published.measured_step import measured_s, settled_elsewhere, unscored
from validation.published.outcome import BEST_PLAN, NO_MEASUREMENT, PREDICTED, Outcome
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun

ELSEWHERE = "elsewhere"  # the status of a row that another comparison predicts
WORTH_A_POOL = 40  # rows: below that, starting processes takes longer than predicting
AT_ONCE = 8  # neighbours have the same programs; more of them leave a worker idle at the end


@record(slots=False)
class Task:
    """What decides a prediction; rows that agree in it share one."""

    job: Job
    machine: Machine

    @property
    def signature(self) -> str:
        """Equal for tasks that are predicted alike."""
        job = self.job
        unnamed = replace(job.gpt, name="", source="")
        return repr((unnamed, job.plan, job.stack, self.machine.entries))


@record(slots=False)
class PredictedRow:
    """A task's prediction, or why there is none."""

    step_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    breakdown_s: tuple[tuple[str, float], ...] = ()
    fits: bool = True
    refusal: str = ""
    peak_bytes: int | None = None
    place: Place | None = None


@record(slots=False)
class Failure:
    """Why there is no case of a row."""

    status: str
    reason: str


Prepared = tuple[Case, Machine]
Predicted = list[tuple[str, PredictedRow]]  # by signature
Each = Callable[[Callable[[Any], Any], Sequence[Any], int], Iterator[Any]]


def predict_runs(
    runs: Sequence[PublishedRun],
    progress: Callable[[str], None],
    find_plan: FindPlan | None = None,
    stack_of: Callable[[PublishedRun, Stack], Stack] = lambda _, stack: stack,
) -> list[Outcome]:
    """An outcome for every row, in their order; none is left out.

    The plans of rows that say none are searched beside the predictions of the others. `stack_of`
    gives another stack for a row's own.
    """
    with Session(), processes(len(runs)) as each:
        ready = each(prepared, runs, AT_ONCE)
        cases = {
            run.id: _with_stack(case, partial(stack_of, run))
            for run, case in zip(runs, ready, strict=True)
        }
        lacking = [run for run in runs if find_plan is not None and _has_no_plan(cases[run.id])]
        known = _signed(cases)
        tasks = dict(known.values())
        progress(f"predicting {len(tasks)} plans for {len(known)} rows, searching {len(lacking)}")
        searches = [partial(prepared, run, find_plan) for run in lacking]
        done = each(_called, [*searches, *_predictions(tasks)], 1)
        cases |= {run.id: next(done) for run in lacking}
        answers = dict(chain.from_iterable(done))
        known |= _signed({run.id: cases[run.id] for run in lacking})
        new = {name: task for name, task in known.values() if name not in answers}
        answers |= chain.from_iterable(each(_called, _predictions(new), 1))
    found = {key: answers[name] for key, (name, _) in known.items()}
    return [_outcome(run, cases[run.id], found.get(run.id)) for run in runs]


def prepared(run: PublishedRun, find_plan: FindPlan | None = None) -> Prepared | Failure:
    """What stands for a row, or why nothing does."""
    if where := settled_elsewhere(run):
        return Failure(ELSEWHERE, where)
    if run.refusal:
        return Failure(UNSUPPORTED, run.refusal)
    try:
        return case_of(run, find_plan), machine_of(run)
    except NoCaseError as error:
        return Failure(error.status, str(error))
    except SimgptError as error:
        return Failure(UNSUPPORTED, str(error))


def _with_stack(case: Prepared | Failure, stack_of: Callable[[Stack], Stack]) -> Prepared | Failure:
    if isinstance(case, Failure):
        return case
    job = case[0].job
    return replace(case[0], job=replace(job, stack=stack_of(job.stack))), case[1]


def _has_no_plan(case: Prepared | Failure) -> bool:
    return isinstance(case, Failure) and case.status == NO_PLAN


def _failed(run: PublishedRun, failure: Failure) -> Outcome:
    measured = run.real("measured_step_s")
    return Outcome(run, failure.status, failure.reason, measured_s=measured, unscored=unscored(run))


def _outcome(run: PublishedRun, ready: Prepared | Failure, answer: PredictedRow | None) -> Outcome:
    if isinstance(ready, Failure):
        return _failed(run, ready)
    assert answer is not None, "every case is predicted"
    if answer.refusal:
        return _failed(run, Failure(UNSUPPORTED, answer.refusal))
    case, machine = ready
    measured = measured_s(run, case.asked, machine)
    parts = {name: seconds * case.scale for name, seconds in answer.breakdown_s}
    return Outcome(
        run=run,
        status=_status(case, measured),
        reason="; ".join(case.remarks),
        plan=str(case.job.plan),
        stack=case.job.stack.name,
        measured_s=measured,
        predicted_s=answer.step_s * case.scale,
        low_s=answer.low_s * case.scale,
        high_s=answer.high_s * case.scale,
        ideal=None if case.searched else ideal_of(run, case, machine),
        unscored=unscored(run),
        fits=answer.fits,
        fits_as_read=answer.fits and case.fits,
        peak_bytes=answer.peak_bytes,
        breakdown_s=parts,
        place=answer.place,
    )


def _status(case: Case, measured: float | None) -> str:
    if case.searched:
        return BEST_PLAN
    return PREDICTED if measured is not None else NO_MEASUREMENT


def _signed(cases: Mapping[str, Prepared | Failure]) -> dict[str, tuple[str, Task]]:
    """By row what is to be predicted, and its signature, where there is a case."""
    tasks = {
        key: Task(each[0].job, each[1])
        for key, each in cases.items()
        if not isinstance(each, Failure)
    }
    return {key: (task.signature, task) for key, task in tasks.items()}


def _predictions(tasks: Mapping[str, Task]) -> list[Callable[[], Predicted]]:
    """Calls that predict tasks by signature, a few each: neighbours in time have the same programs,
    which a process keeps."""
    near = sorted(tasks.items(), key=lambda item: _nearness(item[1]))
    batches = (near[first : first + AT_ONCE] for first in range(0, len(near), AT_ONCE))
    return [partial(_predicted, batch) for batch in batches]


def _nearness(task: Task) -> str:
    """Equal or close for tasks that a session answers sooner one after the other: what it keeps is
    of a machine, a model and a plan."""
    return repr((task.machine.name, task.job.gpt, task.job.plan))


def _predicted(tasks: Sequence[tuple[str, Task]]) -> Predicted:
    return [(name, predicted(task)) for name, task in tasks]


def _called(task: Callable[[], Any]) -> Any:
    return task()


class LostProcessError(SimgptError):
    """A process of this machine that ended before it had predicted its rows."""

    exit_code = ExitStatus.MACHINE_FAILED


@contextmanager
def processes(rows: int) -> Iterator[Each]:
    """One process for each core, each in a session of its own; for few rows this one. What it
    gives is called as `map` is, with how many of the tasks a process is given at once."""
    workers = len(os.sched_getaffinity(0))
    if rows < WORTH_A_POOL or workers < 2:
        yield lambda function, tasks, at_once: map(function, tasks)
        return
    with Pool(workers, partial(import_module, __name__)) as pool:
        try:
            yield pool.map
        except LostError as lost:
            why = f"process {lost.pid}, which predicted rows, {lost.what}"
            raise LostProcessError(f"{why}; it may need more memory than there is") from None


def predicted(task: Task) -> PredictedRow:
    """Predict one task."""
    try:
        with gc_paused():
            job = task.job
            placed = scheduler(task.machine, job.plan.grid.ranks)
            found = predict(job.gpt, job.plan, task.machine, placement=placed, stack=job.stack)
    except SimgptError as error:
        return PredictedRow(refusal=str(error))
    parts, within = tuple(found.breakdown_s.items()), found.range
    memory = found.memory
    return PredictedRow(
        found.step_s,
        within.low_s,
        within.high_s,
        parts,
        memory.fits,
        peak_bytes=memory.peak_bytes,
        place=found.place,
    )
