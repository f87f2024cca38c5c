"""Processes that work for this one: they end with it, and each keeps a session of its own.

Every process is an executor of its own, with one process. So a task can be given to the process
that has what it needs, and the loss of one is known by its number and leaves the others at work.

Processes ignore the signals that a terminal or a scheduler sends to a whole process group: their
parent handles them, and still reads what the processes are sending.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus
from topologies.interpreter import apart_from_the_folder
from topologies.session import Session, begin_worker, current_session

LONGEST_S = 3600.0
# The last one ends a time limit.
IGNORED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGURG}


class LostError(SimgptError):
    """Process `number` of a pool ended without an answer; `what` says how, as in `ended (1)`."""

    exit_code = ExitStatus.MACHINE_FAILED

    def __init__(self, number: int, pid: int | None, what: str) -> None:
        super().__init__(f"process {pid} {what}")
        self.number, self.pid, self.what = number, pid, what


class OverdueError(LostError):
    """No process answered within the time limit; process `number` is one of those at work."""


class Pool:
    """`count` processes, started with the first task, before which each calls `begin`. It ends with
    its `with` block, whatever they are doing. The next answer may take `longest_s`."""

    def __init__(
        self,
        count: int,
        begin: Callable[[], object] | None = None,
        longest_s: float = LONGEST_S,
    ) -> None:
        self.count = count
        self._begin, self._longest_s = begin, min(longest_s, threading.TIMEOUT_MAX)
        self._workers: list[_Worker] = []
        self._busy: set[int] = set()
        # Python's own way to wait for futures takes locks, which a signal's exception may leave.
        self._done: SimpleQueue[tuple[int, Future[Any]]] = SimpleQueue()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.shutdown()

    @property
    def idle(self) -> list[int]:
        """The numbers of processes without a task."""
        return [number for number in range(self.count) if number not in self._busy]

    def start(self) -> None:
        """Start the processes, if they have not been; they take half a second to be ready."""
        with spawning():
            while len(self._workers) < self.count:
                self._workers.append(_Worker(self._begin))

    def restart(self, number: int) -> None:
        """Start another process in place of one that was lost, which has ended."""
        with spawning():
            self._workers[number] = _Worker(self._begin)

    def submit(self, number: int, function: Callable[..., Any], *args: object) -> None:
        """Have an idle process run a function, without waiting until it is told to. That the
        process is gone shows when its answer is awaited."""
        if len(self._workers) < self.count:
            self.start()
        call = pickle.dumps((function, args))  # at once: an executor would do it in another thread
        with signals_ignored(IGNORED):  # which may not leave an executor with half a task
            self._busy.add(number)
            try:
                future = self._workers[number].submit(_run, call)
            except BrokenProcessPool as error:
                future = Future()
                future.set_exception(error)
            future.add_done_callback(lambda done: self._done.put((number, done)))

    def wait(self) -> tuple[int, Any]:
        """Wait for any process to finish its task: its number, and the result. A LostError names
        the process that ended."""
        try:
            number, future = self._done.get(timeout=self._longest_s)
        except Empty:
            number = min(self._busy)
            what = f"has not answered for {self._longest_s:.0f} s"
            raise OverdueError(number, self._workers[number].process.pid, what) from None
        self._busy.discard(number)
        try:
            return number, future.result()
        except BrokenProcessPool:
            worker = self._workers[number]
            raise LostError(number, worker.process.pid, worker.end()) from None

    def clear(self) -> None:
        """Wait for all running tasks, and discard their results."""
        while self._busy:
            self.wait()

    def map(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], at_once: int = 1
    ) -> Iterator[Any]:
        """The function's results for all tasks, in order; `at_once` tasks are sent to a process
        together."""
        parts = [tasks[first : first + at_once] for first in range(0, len(tasks), at_once)]
        done: dict[int, list[Any]] = {}
        following = 0
        for place, answers in self.map_as_done(partial(_each, function), parts):
            done[place] = answers
            while following in done:
                yield from done.pop(following)
                following += 1

    def map_as_done(
        self, function: Callable[[Any], Any], tasks: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """The function's results, each with the place of its task, as they arrive."""
        waiting = deque(enumerate(tasks))
        places: dict[int, int] = {}
        while waiting or places:
            for number in self.idle[: len(waiting)]:
                places[number], task = waiting.popleft()
                self.submit(number, function, task)
            number, answer = self.wait()
            yield places.pop(number), answer


class _Worker(ProcessPoolExecutor):
    """An executor with one process, which is starting."""

    def __init__(self, begin: Callable[[], object] | None) -> None:
        context = multiprocessing.get_context("spawn")
        super().__init__(1, mp_context=context, initializer=_begin, initargs=(begin,))
        try:
            self.submit(os.getpid)  # for which it starts the process
        except BaseException:
            self.kill()
            raise
        (self.process,) = self._processes.values()
        # The process alone writes results: so the pipe ends with it, in the middle of one too.
        self._result_queue._writer.close()  # type: ignore[attr-defined]

    def kill(self) -> None:
        """End the process, whatever it does: only this signal reaches it then."""
        for process in (self._processes or {}).values():
            process.kill()

    def end(self) -> str:
        """Kill the process if it still runs, and say how it ended."""
        self.kill()
        self.shutdown()
        code = self.process.exitcode
        return f"was ended by signal {-code}" if code and code < 0 else f"ended ({code})"


def _begin(begin: Callable[[], object] | None) -> None:
    """Begin the life of a process, all of which is in one session."""
    end_with_the_parent()
    Session().__enter__()
    if begin is not None:
        begin()
    begin_worker()


def _run(call: bytes) -> Any:
    function, args = pickle.loads(call)
    try:
        return function(*args)
    finally:
        current_session().save()


def _each(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return [function(task) for task in tasks]


def end_with_the_parent() -> None:
    """See to it that this process ends with the one that started it, busy or not."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(ExitStatus.MACHINE_FAILED)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def spawning() -> Iterator[None]:
    """Processes spawned meanwhile run no code of the user's, and do not hear of IGNORED signals.

    They import nothing from the current folder. They do not run the file of `__main__` again, which
    they have no need of: a script without `if __name__ == "__main__"` would ask its question once
    more in each.
    """
    with apart_from_the_folder():
        # Python's own process, which ignores the others and ends with this one. It lets signals
        # through when it starts.
        with signals_ignored({signal.SIGHUP}):
            resource_tracker.ensure_running()
        with signals_ignored(IGNORED):
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                yield
            finally:
                sys.modules["__main__"] = main


@contextmanager
def signals_ignored(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Processes started meanwhile do not hear of some signals, from their first moment on.

    This process hears of them afterwards: in the middle of a start, an interruption would leave a
    process without what it is to do.
    """
    late: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # Blocking them is not enough: another thread may take a signal, and the main one raises.
        for number in signals:
            handlers[number] = signal.signal(number, lambda number, _: late.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for heard in dict.fromkeys(late):
            signal.raise_signal(heard)
