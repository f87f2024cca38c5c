"""A sweep: the points of a study, given to workers, and their rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from simgpt import options
from simgpt.studies.cluster import Slurm, dask_cluster, slurm_cluster
from simgpt.studies.evaluate import Batch, Row
from simgpt.studies.inputs import Inputs
from simgpt.studies.journal import Journal, rows_in
from simgpt.studies.scaling import with_efficiency
from simgpt.studies.study import Study
from simgpt.studies.workers import InProcess, RowWorkers, in_order, processes
from topologies.records import record

Progress = Callable[[int], None]
MOST_IN_A_BATCH = 16


@record(slots=False)
class SweepResources:
    """What a sweep runs on: `count` processes here, a Dask cluster at `scheduler`, or `slurm` jobs.

    The next row may take `timeout_s`. `note` is called with a sentence about what went wrong and
    was repaired.
    """

    count: int = 1
    scheduler: str | None = None
    slurm: Slurm | None = None
    timeout_s: float = 3600.0
    note: Callable[[str], None] = options.note

    def workers(self, inputs: Inputs, rows: int) -> AbstractContextManager[RowWorkers]:
        """The workers for so many rows, ready to work until the context ends."""
        if self.slurm is not None:
            return slurm_cluster(self.slurm, inputs, self.timeout_s)
        if self.scheduler is not None:
            return dask_cluster(self.scheduler, inputs, self.count, self.timeout_s)
        if min(self.count, rows) > 1:
            return processes(inputs, min(self.count, rows), self.timeout_s)
        return nullcontext(InProcess(inputs))

    @property
    def remote(self) -> bool:
        """Whether batches go over a network."""
        return self.scheduler is not None or self.slurm is not None


def sweep_into(
    folder: Path, study: Study, inputs: Inputs, resources: SweepResources, progress: Progress
) -> None:
    """Bring all rows of a study into a folder, which may have some of them already.

    Rows that are there are on the disk before the next ones are waited for.
    """
    with Journal(folder, study, inputs) as journal:
        if journal.damage:
            resources.note(journal.damage)
        progress(journal.done)
        if there := journal.done + len(journal.kept):
            options.note(f"{folder} has {there:,} of {len(study):,} rows already")
        if journal.done < len(study):
            earlier = rows_in(folder)
            rest = _rest(
                study, inputs, resources, journal.done, earlier, journal.kept, journal.sync
            )
            for row in rest:
                journal.append(row)
                progress(journal.done)
            journal.sync()


def sweep(study: Study, inputs: Inputs, progress: Progress) -> Iterator[Row]:
    """All rows of a study, one after another, kept nowhere."""
    progress(0)
    for row in _rest(study, inputs, SweepResources(), 0, iter(()), {}):
        progress(row["id"] + 1)
        yield row


def _rest(
    study: Study,
    inputs: Inputs,
    resources: SweepResources,
    first: int,
    earlier: Iterator[Row],
    kept: dict[int, Row],
    before_a_wait: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """The rows from `first` on, in order: those that are `kept` are taken from there, and all
    others made."""
    points = [
        each
        for each in itertools.islice(enumerate(study.points()), first, None)
        if each[0] not in kept
    ]
    numbers = range(first, len(study))
    ready = resources.workers(inputs, len(points)) if points else nullcontext(InProcess(inputs))
    with ready as workers:
        # Over a network a batch pays if each worker still gets several.
        size = (
            min(len(points) // (2 * workers.room) + 1, MOST_IN_A_BATCH) if resources.remote else 1
        )
        waiting = iter(points)
        batches: Iterator[Batch] = iter(lambda: list(itertools.islice(waiting, size)), [])
        made = in_order(workers, batches, before_a_wait)
        rows = (kept.pop(number) if number in kept else next(made) for number in numbers)
        yield from _scaled(study, rows, earlier)


def _scaled(study: Study, rows: Iterator[Row], earlier: Iterator[Row]) -> Iterator[Row]:
    """The rows of a scaling study with their efficiency; `earlier` ones may hold the first rung."""
    if study.scaling is None:
        yield from rows
        return
    rungs = len(study.scaling.rungs)
    reference = None
    for row in earlier:
        reference = row if row["id"] % rungs == 0 else reference
    for row in rows:
        reference = row if row["id"] % rungs == 0 else reference
        with_efficiency(row, reference, study.scaling.kind)
        yield row
