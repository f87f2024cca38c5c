"""Workers that compute rows: this process alone, or processes of this machine that it watches.

Workers are given batches by number and hand back their rows in any order. A worker process that
dies or freezes is replaced and its batch given out again; workers end with the process that started
them.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Protocol

from simgpt.studies.errors import WorkersError
from simgpt.studies.evaluate import Batch, Row, rows_of
from simgpt.studies.inputs import Inputs
from simulator.child_process import (
    Pulse,
    Watch,
    beat,
    end_with_the_parent,
    spawning,
)
from topologies.session import Session, begin_worker

AHEAD = 4  # batches begun per worker, so that a slow one holds up few others
TRIES = 3
GRACE_S = 5.0


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
    """Processes of this machine; `timeout_s` without any finished batch is the end, and one that
    has not run for `frozen_s` is replaced, of which `note` hears."""

    def __init__(
        self,
        inputs: Inputs,
        workers: int,
        timeout_s: float,
        frozen_s: float,
        note: Callable[[str], None],
    ) -> None:
        self._inputs = inputs
        self._timeout_s, self._frozen_s = timeout_s, frozen_s
        self._note = note
        self._watch = Watch(frozen_s)
        self._queue: deque[tuple[int, Batch]] = deque()
        self._tries: dict[int, int] = {}
        self._workers: list[_Worker] = []
        try:
            for _ in range(workers):
                self._workers.append(_started(inputs, frozen_s))
        except WorkersError:
            self._stop()
            raise

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    @property
    def room(self) -> int:
        """A few batches for each worker."""
        return AHEAD * len(self._workers)

    def start(self, number: int, batch: Batch) -> None:
        """Queue the batch."""
        self._queue.append((number, batch))

    def finished(self) -> tuple[int, list[Row]]:
        """Keep all workers at work until one hands in its rows."""
        while True:
            for worker in self._workers:
                if worker.task is None and self._queue:
                    worker.begin(self._queue.popleft())
            busy = {worker.pipe: worker for worker in self._workers if worker.task is not None}
            pulses = {pipe: worker.pulse for pipe, worker in busy.items()}
            answered, frozen = self._watch.wait(pulses, self._timeout_s)
            if not answered and not frozen:
                raise WorkersError(
                    f"no row was finished within {self._timeout_s:.0f} s (--timeout); "
                    "the rows before are kept"
                )
            for pipe in frozen:
                self._thaw(busy[pipe])
            if answered and (answer := self._answer(busy[answered[0]])) is not None:
                return answer

    def _thaw(self, worker: _Worker) -> None:
        """End a frozen worker in favour of another one."""
        assert worker.task is not None
        number, batch = worker.task
        self._note(
            f"process {worker.pid} has not run for {self._frozen_s:g} s; it is replaced, and "
            f"{_rows_of(batch)} given to another"
        )
        worker.kill()
        self._replace(worker, number, batch, frozen=True)

    def _answer(self, worker: _Worker) -> tuple[int, list[Row]] | None:
        assert worker.task is not None
        number, batch = worker.task
        try:
            rows = worker.pipe.recv()
        except (EOFError, OSError):
            self._replace(worker, number, batch)
            return None
        worker.task = None
        if isinstance(rows, WorkersError):
            raise rows
        return number, rows

    def _replace(self, worker: _Worker, number: int, batch: Batch, *, frozen: bool = False) -> None:
        """A worker died, or is `frozen`: its batch goes to the next one that is free."""
        worker.stop()
        self._tries[number] = self._tries.get(number, 0) + 1
        if self._tries[number] == TRIES:
            raise WorkersError(f"{self._lost(worker, batch, frozen)}; the rows before are kept")
        self._queue.appendleft((number, batch))
        self._workers[self._workers.index(worker)] = _started(self._inputs, self._frozen_s)

    def _lost(self, worker: _Worker, batch: Batch, frozen: bool) -> str:
        row = f"row {batch[0][0]}"
        if frozen:
            return (
                f"{row} was begun by {TRIES} workers and finished by none, of which the last had "
                f"not run for {self._frozen_s:g} s"
            )
        return (
            f"{row} ended {TRIES} workers ({worker.end}); it may need more memory than there is: "
            "try fewer --workers"
        )

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()


def _rows_of(batch: Batch) -> str:
    """The rows of a batch as a person reads them: `row 3 is`, `rows 3 to 8 are`."""
    first, last = batch[0][0], batch[-1][0]
    return f"row {first} is" if first == last else f"rows {first} to {last} are"


def _started(inputs: Inputs, frozen_s: float) -> _Worker:
    try:
        return _Worker(inputs, frozen_s)
    except OSError as error:
        raise WorkersError(f"cannot start a worker: {error.strerror}") from None


class _Worker:
    """One process, the pipe to it, and its pulse; `task` is what it works on."""

    def __init__(self, inputs: Inputs, frozen_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        heard, beats = context.Pipe(duplex=False)
        self.task: tuple[int, Batch] | None = None
        self._process: SpawnProcess = context.Process(
            target=serve, args=(theirs, beats, frozen_s, inputs), daemon=True, name="simgpt-worker"
        )
        # A terminal's Ctrl-C is for the sweep, which ends them.
        with spawning({signal.SIGINT}):
            self._process.start()
        theirs.close()
        beats.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.pulse = Pulse(heard, self.pid, frozen_s)

    def begin(self, task: tuple[int, Batch]) -> None:
        """Send a task; that the worker is gone shows when its answer is awaited."""
        self.task = task
        try:
            self.pipe.send(task[1])
        except OSError:
            return

    @property
    def end(self) -> str:
        """How the process ended."""
        code = self._process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"status {code}"

    def kill(self) -> None:
        """End the process though it does not run: only this signal reaches it then."""
        self._process.kill()

    def stop(self) -> None:
        """End the process, and wait until it has."""
        self._process.terminate()
        self._process.join(GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(GRACE_S)
        self.pipe.close()
        self.pulse.pipe.close()


def serve(pipe: Connection, beats: Connection, frozen_s: float, inputs: Inputs) -> None:
    """Send rows for batches, in one session, until the parent closes the pipe."""
    beat(beats, frozen_s)
    end_with_the_parent()
    begin_worker()
    session = Session()
    while True:
        try:
            batch: Batch = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            with session:
                answer: list[Row] | WorkersError = rows_of(inputs, batch)
        except WorkersError as error:
            answer = error
        with suppress(OSError):  # nobody waits any longer, which the next batch will show
            pipe.send(answer)
