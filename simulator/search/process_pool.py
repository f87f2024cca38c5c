"""A pool of worker processes that end with the search.

Workers ignore the signals that a terminal or a scheduler sends to a whole process group: the
searching process handles them and still reads what workers are sending.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from threading import Thread
from typing import Any

from simulator.child_process import (
    FROZEN_S,
    Pulse,
    Watch,
    beat,
    end_with_the_parent,
    spawning,
)
from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus
from topologies.session import Session, begin_worker

LONGEST_S = 600.0
GONE_S = 10.0
# The last one ends a time limit.
IGNORED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGURG}


class SearchError(SimgptError):
    """A search that could not go on."""

    exit_code = ExitStatus.MACHINE_FAILED


WorkerState = dict[str, Any]  # kept by a worker from one task to the next
Function = Callable[[WorkerState, Any], Any]


class ProcessPool:
    """`count` processes, started with the first task. One that ended, or has not run for
    `frozen_s`, raises a SearchError that names it."""

    def __init__(self, count: int, frozen_s: float = FROZEN_S) -> None:
        self.count = count
        self._frozen_s = frozen_s
        self._watch = Watch(frozen_s)
        self._pulses: dict[Connection, Pulse] = {}
        self._busy: dict[Connection, None] = {}
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._senders: dict[int, Thread] = {}

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for sender in self._senders.values():  # to processes that are gone, so they end too
            sender.join(GONE_S)
        for pipe in self._pipes:
            pipe.close()
            self._pulses[pipe].pipe.close()

    @property
    def free(self) -> list[int]:
        """The numbers of idle processes."""
        self.start()
        return [number for number, pipe in enumerate(self._pipes) if pipe not in self._busy]

    def ask(self, number: int, function: Function, task: object) -> None:
        """Have an idle process run a function on a task, without waiting until the task is sent."""
        self.start()
        pipe = self._pipes[number]
        message = ForkingPickler.dumps((function, task))
        self._senders[number] = Thread(target=_send, args=(pipe, message), daemon=True)
        self._senders[number].start()
        self._busy[pipe] = None

    def answer(self) -> tuple[int, Any]:
        """Wait for any process to finish its task: its number, and the result."""
        pulses = {pipe: self._pulses[pipe] for pipe in self._busy}
        answered, frozen = self._watch.wait(pulses, LONGEST_S)
        if frozen:
            raise self._lost(frozen[0], f"has not run for {self._frozen_s:g} s")
        if not answered:
            pipe = next(each for each in self._pipes if each in self._busy)
            raise self._lost(pipe, f"has not answered for {LONGEST_S:.0f} s")
        pipe = answered[0]
        try:
            answer, error = pipe.recv()
        except (EOFError, OSError):
            raise self._lost(pipe, "ended") from None
        del self._busy[pipe]
        if error is not None:
            raise error
        return self._pipes.index(pipe), answer

    def clear(self) -> None:
        """Wait until all processes are idle; what they answer is of no use any more."""
        while self._busy:
            self.answer()

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """The function's results for all tasks, in order."""
        done: dict[int, Any] = {}
        following = 0
        for place, answer in self.map_as_done(function, tasks):
            done[place] = answer
            while following in done:
                yield done.pop(following)
                following += 1

    def map_as_done(
        self, function: Callable[[Any], Any], tasks: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """The function's results, each with the place of its task, as they arrive."""
        waiting = deque(enumerate(tasks))
        asked: dict[int, int] = {}
        while waiting or asked:
            for number in self.free[: len(waiting)]:
                asked[number], task = waiting.popleft()
                self.ask(number, _mapped, (function, task))
            number, answer = self.answer()
            yield asked.pop(number), answer

    def _lost(self, pipe: Connection, what: str) -> SearchError:
        """The error for a process that does not answer any more."""
        process = self._processes[self._pipes.index(pipe)]
        if what == "ended":
            process.join(GONE_S)
            code = process.exitcode
            what = f"was ended by signal {-code}" if code and code < 0 else f"ended ({code})"
        return SearchError(f"process {process.pid} of the search {what}; try --workers 1")

    def start(self) -> None:
        """Start the processes, if they have not been; they take half a second to be ready."""
        if self._processes:
            return
        context = multiprocessing.get_context("spawn")
        with spawning(IGNORED):
            for _ in range(self.count):
                ours, theirs = context.Pipe()
                heard, beats = context.Pipe(duplex=False)
                process = context.Process(
                    target=_serve, args=(theirs, beats, self._frozen_s), daemon=True
                )
                process.start()
                theirs.close()
                beats.close()
                self._processes.append(process)
                self._pipes.append(ours)
                assert process.pid is not None
                self._pulses[ours] = Pulse(heard, process.pid, self._frozen_s)


def _send(pipe: Connection, message: Any) -> None:
    with suppress(OSError):  # of a process that ended, which is noticed when it does not answer
        pipe.send_bytes(message)


def _mapped(_: WorkerState, call: tuple[Callable[[Any], Any], Any]) -> Any:
    function, task = call
    return function(task)


def _serve(pipe: Connection, beats: Connection, frozen_s: float) -> None:
    """Run tasks until the parent closes the pipe."""
    beat(beats, frozen_s)
    end_with_the_parent()
    begin_worker()
    state: WorkerState = {}
    session = Session()
    while True:
        try:
            function, task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            with session:
                result = function(state, task)
            pipe.send((result, None))
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send((None, error))
