"""Verdicts on memory beside what happened: runs that ran, and runs that ran out of memory.

Each row is taken as it is read, before anything is changed because it ran, and P(fits) comes from
the measured peaks of other sources alone. Only peaks are predicted, no times; rows that ask alike
share one. Of a plan whose peak must be larger than what almost never fits, the bound stands for the
peak (`few_layers.py`): its P(fits) is no smaller than the plan's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from simulator.stacks.job import Job
from simulator.step_memory import Room, room_for
from simulator.uncertainty.fitting import (
    SURE,
    UNLIKELY,
    VERDICTS,
    Kind,
    PeakErrors,
    kind_of,
    measured_peaks,
    verdict_of,
)
from topologies.errors import SimgptError
from topologies.files.units import quantity
from topologies.machine import Machine
from topologies.records import record
from topologies.session import Session, session_cached
from validation.memory.few_layers import job_bytes, least_bytes
from validation.memory.golden_runs import golden_runs
from validation.memory.memory_questions import (
    GOLDEN,
    GOLDEN_EXPERTS,
    header_of,
    measure_of,
    published_in,
)
from validation.published.case import OUT_OF_MEMORY, case_as_read
from validation.published.predicting import AT_ONCE, Task, processes
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun, lines_of, runs_of

SHIPPED = "out_of_memory.csv"
FAR = 0.02  # P(fits) below which a bound on the peak is enough
BINS = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0)  # of P(fits), for the reliability table
AMPLE = 0.85  # of a device's memory: a run that took less should not be called tight


@record(slots=False)
class Happened:
    """A run that ran, or ran out of memory; `share` of its device's memory is its measured peak,
    where it is known."""

    id: str
    source: str
    ran: bool
    job: Job
    machine: Machine
    share: float | None = None


@record(slots=False)
class VerdictRow:
    """A run, its P(fits) and the verdict."""

    id: str
    source: str
    ran: bool
    share: float | None
    peak_bytes: int
    capacity_bytes: int
    p_fits: float
    verdict: str


@record(slots=False)
class Tally:
    """How many of some runs there are, and of which share the verdict is which."""

    rows: int
    fits: float
    tight: float
    does_not_fit: float


@record(slots=False)
class VerdictValidation:
    """All rows, and how many others were refused for which reason."""

    rows: tuple[VerdictRow, ...]
    refused: dict[str, int]

    @property
    def ran(self) -> list[VerdictRow]:
        """Runs that ran."""
        return [row for row in self.rows if row.ran]

    @property
    def out_of_memory(self) -> list[VerdictRow]:
        """Runs that did not."""
        return [row for row in self.rows if not row.ran]

    @property
    def ample(self) -> list[VerdictRow]:
        """Runs that ran and took less than `AMPLE` of their device's memory."""
        return [row for row in self.ran if row.share is not None and row.share < AMPLE]

    def tallies(self) -> dict[str, Tally]:
        """The verdicts by group: what happened in all, and by source."""
        found = {
            "ran": self.ran,
            f"ran, peak below {100 * AMPLE:.0f} % of memory": self.ample,
            "out of memory": self.out_of_memory,
        }
        for row in self.rows:
            what = "ran" if row.ran else "out of memory"
            found.setdefault(f"{what}: {row.source}", []).append(row)
        return {name: tally(rows) for name, rows in found.items() if rows}

    @property
    def brier(self) -> float:
        """The mean squared difference of P(fits) and what happened, both outcomes weighed alike: a
        coin has 0.25."""
        each = [_mean((row.p_fits - row.ran) ** 2 for row in rows) for rows in self._outcomes]
        return _mean(each)

    def reliability(self) -> list[tuple[float, float, int, int]]:
        """By bins of P(fits), whose ends come first: runs that ran, and runs that did not."""
        found = []
        for low, high in pairwise(BINS):
            own = [r for r in self.rows if low <= r.p_fits < high or (high == r.p_fits == 1)]
            found.append((low, high, sum(r.ran for r in own), sum(not r.ran for r in own)))
        return found

    @property
    def _outcomes(self) -> list[list[VerdictRow]]:
        return [rows for rows in (self.ran, self.out_of_memory) if rows]

    def as_dict(self) -> dict[str, Any]:
        """The validation as it stands in JSON."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "verdicts": {name: vars(found) for name, found in self.tallies().items()},
            "brier": self.brier if self.rows else None,
            "reliability": [
                {"from": low, "to": high, "ran": ran, "out_of_memory": failed}
                for low, high, ran, failed in self.reliability()
            ],
            "refused": dict(self.refused),
        }


def tally(rows: Sequence[VerdictRow]) -> Tally:
    """The shares of the verdicts on some rows."""
    shares = [sum(row.verdict == each for row in rows) / len(rows) for each in VERDICTS]
    return Tally(len(rows), *shares)


def _mean(numbers: Iterable[float]) -> float:
    every = list(numbers)
    return sum(every) / len(every) if every else 0.0


def validate_verdicts(
    path: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> VerdictValidation:
    """The verdicts on the runs of a file; without one, on those that come with simgpt."""
    refused: dict[str, int] = {}
    with Session():
        rows = [*_happened(path, refused)]
        peaks = _peaks(rows, progress)
        found = [_verdict(row, peaks[_task(row).signature]) for row in rows]
    return VerdictValidation(tuple(found), refused)


def _verdict(row: Happened, peak_bytes: int) -> VerdictRow:
    room = _room(row.job, row.machine, row.source)
    limits = room.most_bytes(SURE), room.most_bytes(UNLIKELY)
    return VerdictRow(
        id=row.id,
        source=row.source,
        ran=row.ran,
        share=row.share,
        peak_bytes=peak_bytes,
        capacity_bytes=room.capacity_bytes,
        p_fits=room.p_fits(peak_bytes),
        verdict=verdict_of(peak_bytes, *limits),
    )


def _room(job: Job, machine: Machine, source: str) -> Room:
    """What there is for a job's tensors, as far as other sources tell."""
    experts = bool(job.gpt.moe.experts)
    errors = _errors(kind_of(job.stack, experts=experts), source)
    return replace(room_for(machine, job.stack, experts=experts), errors=errors)


@session_cached(1024)
def _errors(kind: Kind, source: str) -> PeakErrors:
    return measured_peaks().errors_of(kind, without=source)


def _task(row: Happened) -> Task:
    return Task(row.job, row.machine)


def _peaks(rows: Sequence[Happened], progress: Callable[[str], None]) -> dict[str, int]:
    """The peaks of rows by the signatures of their tasks."""
    tasks = {_task(row).signature: _task(row) for row in rows}
    order = sorted(tasks, key=lambda name: repr((tasks[name].job.gpt, tasks[name].job.plan)))
    found: dict[str, int] = {}
    with processes(len(order)) as each:
        peaks = each(_peak, [tasks[name] for name in order], AT_ONCE)
        for name, peak_bytes in zip(order, peaks, strict=True):
            found[name] = peak_bytes
            progress(f"{len(found):,} of {len(order):,} peaks predicted")
    return found


def _peak(task: Task) -> int:
    """The peak of a task, or a bound on it that is far too large."""
    job, machine = task.job, task.machine
    room = room_for(machine, job.stack, experts=bool(job.gpt.moe.experts))
    least = least_bytes(job)
    return least if least > room.most_bytes(FAR) else job_bytes(job)


def _happened(path: Path | None, refused: dict[str, int]) -> Iterator[Happened]:
    """The runs of a file, or of those that come with simgpt, that something stands for."""
    golden = path is None or "golden_file" in header_of(path)
    for run in golden_runs(path) if golden else ():
        source = GOLDEN_EXPERTS if run.has_experts else GOLDEN
        try:
            share = run.measured_bytes / run.machine.device.memory_bytes
            yield Happened(run.id, source, True, run.job, run.machine, share)
        except SimgptError as error:
            refused[str(error)] = refused.get(str(error), 0) + 1
    published = published_in(path) if path is None or not golden else []
    if path is None:
        published += runs_of(*lines_of(None, SHIPPED))
    for row in published:
        try:
            yield _of_published(row)
        except SimgptError as error:
            refused[str(error)] = refused.get(str(error), 0) + 1


def _of_published(run: PublishedRun) -> Happened:
    if run.refusal:
        raise SimgptError(run.refusal)
    job, machine = case_as_read(run).job, machine_of(run)
    ran = run.text("status") != OUT_OF_MEMORY
    return Happened(run.id, run.source, ran, job, machine, _share(run, machine))


def _share(run: PublishedRun, machine: Machine) -> float | None:
    """The measured peak as a share of the device's memory, in the terms of its measure."""
    peak = run.real("peak_mem_GiB")
    if not peak:
        return None
    unit = quantity(measure_of(run).get("unit", "1 GiB"), "bytes")
    return peak * unit / machine.device.memory_bytes
