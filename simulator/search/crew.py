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
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from simulator.processes import end_with_the_parent
from topologies.errors import SimgptError

LONGEST_S = 600.0
UNHEARD = {signal.SIGINT, signal.SIGTERM, signal.SIGURG}  # the last one ends a time limit


class SearchError(SimgptError):
    """A search that could not go on."""

    exit_code = 5


class Crew:
    """`count` processes, started when there is first something for them to do."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._processes: dict[Connection, SpawnProcess] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe, process in self._processes.items():
            process.kill()
            pipe.close()
        for process in self._processes.values():
            process.join()

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """What the function makes of each task, in order."""
        self._start()
        waiting = deque(enumerate(tasks))
        busy: dict[Any, int] = {}
        done: dict[int, Any] = {}
        for number in range(len(tasks)):
            while number not in done:
                for pipe in self._processes:
                    if pipe not in busy and waiting:
                        busy[pipe], task = waiting.popleft()
                        self._send(pipe, (function, task))
                if not (ready := wait(list(busy), LONGEST_S)):
                    raise _gone()
                for free in ready:
                    done[busy[free]] = self._received(free)
                    del busy[free]
            yield done.pop(number)

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
                self._processes[ours] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _send(self, pipe: Connection, task: object) -> None:
        try:
            pipe.send(task)
        except OSError as error:
            raise _gone() from error

    def _received(self, pipe: Any) -> Any:
        try:
            answer, error = pipe.recv()
        except (EOFError, OSError) as broken:
            raise _gone() from broken
        if error is not None:
            raise error
        return answer


def _gone() -> SearchError:
    return SearchError("a process of the search ended or hangs; try --workers 1")


def _serve(pipe: Connection) -> None:
    """A process' life: answers to tasks, until nobody asks any more."""
    end_with_the_parent()
    while True:
        try:
            function, task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((function(task), None))
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send((None, error))
