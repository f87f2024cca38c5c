"""Processes that work for a search, and end with it at once, whatever they are at.

A signal that a terminal or a scheduler sends to all processes is for the one that searches: it says
what was found. So these do not hear of it, and nothing is lost of what they are just handing over.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from threading import Thread
from typing import Any

from simulator.processes import end_with_the_parent
from topologies.errors import SimgptError

LONGEST_S = 600.0
GONE_S = 10.0
UNHEARD = {signal.SIGINT, signal.SIGTERM, signal.SIGURG}  # the last one ends a time limit


class SearchError(SimgptError):
    """A search that could not go on."""

    exit_code = 5


Own = dict[str, Any]  # what a process keeps from one task to the next
Function = Callable[[Own, Any], Any]


class Crew:
    """`count` processes, started when there is first something for them to do."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._busy: set[Connection] = set()
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._senders: dict[int, Thread] = {}

    def __enter__(self) -> Crew:
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

    @property
    def free(self) -> list[int]:
        """The numbers of those that have nothing to do."""
        self._start()
        return [number for number, pipe in enumerate(self._pipes) if pipe not in self._busy]

    def ask(self, number: int, function: Function, task: object) -> None:
        """Have a free process run a function on a task; nobody waits until it has heard of it."""
        self._start()
        pipe = self._pipes[number]
        message = ForkingPickler.dumps((function, task))
        self._senders[number] = Thread(target=_send, args=(pipe, message), daemon=True)
        self._senders[number].start()
        self._busy.add(pipe)

    def answer(self) -> tuple[int, Any]:
        """What a process that was asked made of its task, and its number: any that is through."""
        if not (ready := wait(self._busy, LONGEST_S)):
            raise _gone()
        pipe = ready[0]
        assert isinstance(pipe, Connection)
        try:
            answer, error = pipe.recv()
        except (EOFError, OSError) as broken:
            raise _gone() from broken
        self._busy.remove(pipe)
        if error is not None:
            raise error
        return self._pipes.index(pipe), answer

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """What the function makes of each task, in order."""
        waiting = deque(enumerate(tasks))
        asked: dict[int, int] = {}
        done: dict[int, Any] = {}
        for place in range(len(tasks)):
            while place not in done:
                for number in self.free[: len(waiting)]:
                    asked[number], task = waiting.popleft()
                    self.ask(number, _mapped, (function, task))
                number, answer = self.answer()
                done[asked.pop(number)] = answer
            yield done.pop(place)

    def _start(self) -> None:
        if self._processes:
            return
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # which lets signals through when it starts one
        before = signal.pthread_sigmask(signal.SIG_BLOCK, UNHEARD)  # which processes inherit
        try:
            for _ in range(self.count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _send(pipe: Connection, message: Any) -> None:
    with suppress(OSError):  # of a process that ended, which is noticed when it does not answer
        pipe.send_bytes(message)


def _mapped(_: Own, call: tuple[Callable[[Any], Any], Any]) -> Any:
    function, task = call
    return function(task)


def _gone() -> SearchError:
    return SearchError("a process of the search ended or hangs; try --workers 1")


def _serve(pipe: Connection) -> None:
    """A process' life: answers to tasks, until nobody asks any more."""
    end_with_the_parent()
    own: Own = {}
    while True:
        try:
            function, task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((function(own, task), None))
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send((None, error))
