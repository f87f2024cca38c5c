"""Predicting rows: each distinct case once, on several processes where there are many."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, TypeVar

from simulator.child_process import end_with_the_parent, spawning
from simulator.predict import predict
from simulator.stacks import Stack
from simulator.stacks.job import Job
from simulator.uncertainty.anchors import Place
from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus
from topologies.machine import Machine
from topologies.placement import scheduler
from topologies.records import record
from topologies.session import Session, begin_worker, gc_paused
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

Found = TypeVar("Found")
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
Asked = dict[
    str, tuple[Future[list[PredictedRow]], int]
]  # by signature: a batch, and a place in it


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
    with Session(), processes(len(runs)) as pool:
        ready = pool.map(prepared, runs, chunksize=AT_ONCE)
        cases = {
            run.id: _with_stack(case, partial(stack_of, run))
            for run, case in zip(runs, ready, strict=True)
        }
        lacking = [run for run in runs if find_plan is not None and _has_no_plan(cases[run.id])]
        searches = {run.id: pool.submit(prepared, run, find_plan) for run in lacking}
        asked: Asked = {}
        known = _asked(pool, {k: c for k, c in cases.items() if k not in searches}, asked)
        progress(f"predicting {len(asked)} plans for {len(known)} rows, searching {len(searches)}")
        cases |= {key: search.result() for key, search in searches.items()}
        known |= _asked(pool, {key: cases[key] for key in searches}, asked)
        answers = {key: _answer(*asked[signature]) for key, signature in known.items()}
    return [_outcome(run, cases[run.id], answers.get(run.id)) for run in runs]


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


def _asked(pool: Executor, cases: Mapping[str, Prepared | Failure], asked: Asked) -> dict[str, str]:
    """By row the signature under which its prediction stands in `asked`, where there is a case.

    Neighbours in time have the same programs, which a process keeps.
    """
    tasks = {
        key: Task(each[0].job, each[1])
        for key, each in cases.items()
        if not isinstance(each, Failure)
    }
    signatures = {key: task.signature for key, task in tasks.items()}
    distinct = {signatures[key]: task for key, task in tasks.items()}
    new = [name for name in distinct if name not in asked]
    new.sort(key=lambda name: _nearness(distinct[name]))
    for first in range(0, len(new), AT_ONCE):
        some = new[first : first + AT_ONCE]
        batch = pool.submit(_predicted, [distinct[name] for name in some])
        asked.update({name: (batch, place) for place, name in enumerate(some)})
    return signatures


def _nearness(task: Task) -> str:
    """Equal or close for tasks that a session answers sooner one after the other: what it keeps is
    of a machine, a model and a plan."""
    return repr((task.machine.name, task.job.gpt, task.job.plan))


def _answer(batch: Future[list[PredictedRow]], place: int) -> PredictedRow:
    return batch.result()[place]


def _predicted(tasks: Sequence[Task]) -> list[PredictedRow]:
    return [predicted(task) for task in tasks]


class LostProcessError(SimgptError):
    """A process of this machine that ended before it had predicted its rows."""

    exit_code = ExitStatus.MACHINE_FAILED


class _Processes(ProcessPoolExecutor):
    """Starts a process for a task while there are fewer than it may have; a terminal's Ctrl-C is
    for this one alone."""

    def submit(self, fn: Callable[..., Found], /, *args: Any, **named: Any) -> Future[Found]:
        """The outcome, once a process has it."""
        with spawning({signal.SIGINT}):
            return super().submit(fn, *args, **named)


class _ThisProcess(Executor):
    """Does at once what it is given."""

    def submit(self, fn: Callable[..., Found], /, *args: Any, **named: Any) -> Future[Found]:
        """The outcome, in a future that is done."""
        future: Future[Found] = Future()
        future.set_result(fn(*args, **named))
        return future


@contextmanager
def processes(rows: int) -> Iterator[Executor]:
    """One process for each core, each in a session of its own; for few rows this one. After an
    error what has not begun is not done any more."""
    workers = len(os.sched_getaffinity(0))
    if rows < WORTH_A_POOL or workers < 2:
        yield _ThisProcess()
        return
    context = multiprocessing.get_context("spawn")
    with spawning({signal.SIGINT}):
        pool = _Processes(workers, mp_context=context, initializer=_begin)
    try:
        yield pool
    except BrokenProcessPool:
        raise LostProcessError(
            "a process that predicted rows has ended; it may need more memory than there is"
        ) from None
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _begin() -> None:
    """Keep what predictions have in common for as long as this process lives, and save it then."""
    end_with_the_parent()
    begin_worker()
    session = Session().__enter__()
    Finalize(None, session.__exit__, args=(None, None, None), exitpriority=1)


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
