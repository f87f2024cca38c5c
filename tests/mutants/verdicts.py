"""What becomes of each mutation: put in, tested, and checked against the clean copy."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.copies import copy, files_of, mutated
from tests.mutants.mutation import Mutation
from tests.mutants.trial import Runner

KILLED = ("killed", "timeout", "broken")
ERRORS = ("stale", "unclean")


@dataclass(frozen=True)
class Verdict:
    """What became of one mutation, by which test, and in how many seconds."""

    mutation: Mutation
    verdict: str
    by: str = ""
    seconds: float = 0.0

    def row(self) -> dict[str, object]:
        """The verdict as one line of JSON has it."""
        of = self.mutation
        known = {"id": of.id, "file": of.file, "weight": of.weight, "breaks": of.breaks}
        return known | {"verdict": self.verdict, "by": self.by, "seconds": round(self.seconds, 1)}


def judged(root: Path, mutation: Mutation, runner: Runner, timeout_s: float) -> Verdict:
    """Put the mutation into the copy at `root` and see whether its tests notice.

    A failure or a time-out counts only if the clean copy shows none.
    """
    if reason := mutation.stale(root):
        return Verdict(mutation, "stale", reason)
    with mutated(root, mutation):
        trial = runner.run(root, mutation.tests, timeout_s)
    if trial.outcome == "passed":
        return Verdict(mutation, "survived", "", trial.seconds)
    if trial.outcome == "missing":
        return Verdict(mutation, "stale", trial.first, trial.seconds)
    again = [trial.first] if trial.outcome == "failed" else mutation.tests
    clean = runner.run(root, again, timeout_s)
    if clean.outcome == "missing":  # a name that the summary of pytest does not give in full
        clean = runner.run(root, mutation.tests, timeout_s)
    if clean.outcome != "passed":
        return Verdict(mutation, "unclean", clean.first or clean.outcome, trial.seconds)
    verdict = "killed" if trial.outcome == "failed" else trial.outcome
    return Verdict(mutation, verdict, trial.first, trial.seconds)


def judge_all(
    checkout: Path,
    mutations: Sequence[Mutation],
    *,
    jobs: int,
    timeout_s: float,
    said: Callable[[Verdict], None],
) -> list[Verdict]:
    """Judge the mutations in `jobs` copies of the checkout; `said` hears each verdict in turn."""
    todo: queue.SimpleQueue[Mutation] = queue.SimpleQueue()
    for mutation in mutations:
        todo.put(mutation)
    found: list[Verdict] = []
    stop, lock = threading.Event(), threading.Lock()

    def work(folder: Path) -> None:
        root, runner = folder / "copy", Runner(folder / "scratch", stop)
        copy(checkout, files, root)
        while not stop.is_set():
            try:
                verdict = judged(root, todo.get_nowait(), runner, timeout_s)
            except (queue.Empty, KeyboardInterrupt):
                return
            with lock:
                found.append(verdict)
                said(verdict)

    files = files_of(checkout)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        threads = [
            threading.Thread(target=work, args=(Path(name) / str(job),)) for job in range(jobs)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    return found
