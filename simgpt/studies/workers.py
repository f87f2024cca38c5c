"""Workers that compute rows: this process alone, or processes of this machine.

Workers are given batches by number and hand back their rows in any order. A worker process that
dies is replaced and its batch given out again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from simgpt.studies.errors import WorkersError
from simgpt.studies.evaluate import Batch, Row, rows_of
from simgpt.studies.inputs import Inputs
from simulator.pool import LostError, OverdueError, Pool
from topologies.session import current_session

AHEAD = 4  # batches begun per worker, so that a slow one holds up few others
TRIES = 3


class RowWorkers(Protocol):
    """`room` batches may be under way at once."""

    @property
    def room(self) -> int:
        """How many batches to begin ahead."""

    def start(self, number: int, batch: Batch) -> None:
        """Give a batch to whoever is free first."""

    def finished(self) -> tuple[int, list[Row]]:
        """Wait for any batch: its number and its rows."""


def in_order(
    workers: RowWorkers, batches: Iterable[Batch], before_a_wait: Callable[[], None] = lambda: None
) -> Iterator[Row]:
    """The rows of all batches in their order, whichever is finished first."""
    ahead: dict[int, list[Row]] = {}
    waiting = enumerate(batches)
    begun = given = 0
    while True:
        while begun - given < workers.room and (following := next(waiting, None)) is not None:
            workers.start(*following)
            begun += 1
        if begun == given:
            return
        before_a_wait()
        number, rows = workers.finished()
        ahead[number] = rows
        while given in ahead:
            yield from ahead.pop(given)
            given += 1


class InProcess:
    """This process does the work itself."""

    room = 1

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._waiting: deque[tuple[int, Batch]] = deque()

    def start(self, number: int, batch: Batch) -> None:
        """Remember the batch."""
        self._waiting.append((number, batch))

    def finished(self) -> tuple[int, list[Row]]:
        """Work on the first batch that waits."""
        number, batch = self._waiting.popleft()
        return number, rows_of(self._inputs, batch)


class Processes:
    """The processes of a pool, each of which keeps the study's inputs; `timeout_s` without any
    finished batch is the end."""

    def __init__(self, pool: Pool, timeout_s: float) -> None:
        self._pool, self._timeout_s = pool, timeout_s
        self._queue: deque[tuple[int, Batch]] = deque()
        self._under_way: dict[int, tuple[int, Batch]] = {}
        self._tries: dict[int, int] = {}

    @property
    def room(self) -> int:
        """A few batches for each worker."""
        return AHEAD * self._pool.count

    def start(self, number: int, batch: Batch) -> None:
        """Queue the batch."""
        self._queue.append((number, batch))

    def finished(self) -> tuple[int, list[Row]]:
        """Keep all workers at work until one hands in its rows."""
        while True:
            for worker in self._pool.idle[: len(self._queue)]:
                self._under_way[worker] = self._queue.popleft()
                self._pool.submit(worker, rows_of_kept, self._under_way[worker][1])
            try:
                worker, rows = self._pool.wait()
            except OverdueError:
                raise WorkersError(
                    f"no row was finished within {self._timeout_s:.0f} s (--timeout); "
                    "the rows before are kept"
                ) from None
            except LostError as lost:
                self._replace(lost)
            else:
                return self._under_way.pop(worker)[0], rows

    def _replace(self, lost: LostError) -> None:
        """A worker died: its batch goes to the next one that is free."""
        number, batch = self._under_way.pop(lost.number)
        self._tries[number] = self._tries.get(number, 0) + 1
        if self._tries[number] == TRIES:
            raise WorkersError(
                f"row {batch[0][0]} ended {TRIES} workers (the last {lost.what}); it may need more "
                "memory than there is: try fewer --workers; the rows before are kept"
            )
        self._queue.appendleft((number, batch))
        with _startable():
            self._pool.restart(lost.number)


@contextmanager
def processes(inputs: Inputs, workers: int, timeout_s: float) -> Iterator[Processes]:
    """Processes of this machine that are at work until the context ends."""
    with Pool(workers, partial(keep, inputs), timeout_s) as pool:
        with _startable():
            pool.start()
        yield Processes(pool, timeout_s)


@contextmanager
def _startable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkersError(f"cannot start a worker: {error.strerror}") from None


def keep(inputs: Inputs) -> None:
    """Have this process's session keep what all batches need."""
    current_session().keep(inputs)


def rows_of_kept(batch: Batch) -> list[Row]:
    """The rows of some points, with the inputs that the session keeps."""
    return rows_of(current_session().the(Inputs), batch)
