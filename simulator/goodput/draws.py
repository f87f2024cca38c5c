"""Many lives of a run at once, as arrays over draws, and one of them event by event.

One round of the loop is one attempt of every draw that is not done: the time to its failure is
drawn, and what is done by then follows from floors and minima. The cost is one round for each
attempt of the draw with most of them, some twenty passes over an array of draws. `tell` plays one
draw anew by its chances, and writes down what each attempt comes to. SimPy plays the same lives in
tests/simulator/goodput/life.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from simulator.goodput.closed_form import check_progress
from simulator.goodput.job import SETTLED_S, GoodputError, Run, SparePool
from topologies.records import record

Reals = NDArray[np.float64]
Rows = NDArray[np.intp]
MOST_ATTEMPTS = 200_000
MOST_SLOTS = 20_000_000  # of broken nodes, in all draws together
FAR = 8.0  # standard deviations above the mean of the nodes in repair, which never are
PARTS = ("restart", "detection", "saving", "waiting", "queue")


@record(slots=False)
class Lives:
    """Draws of a run: the seconds that each takes, how many attempts and failures it has, and what
    its time went to beside training that stays; the rest is `lost`."""

    total_s: Reals
    failures: Reals
    attempts: Reals
    work_s: Reals
    parts_s: dict[str, Reals]

    @property
    def shares(self) -> dict[str, float]:
        """Mean shares of the time: training that stays, training that was lost, and the rest."""
        whole = float(self.total_s.sum())
        shares = {"training": float(self.work_s.sum()) / whole}
        shares |= {name: float(part.sum()) / whole for name, part in self.parts_s.items()}
        return shares | {"lost": 1 - sum(shares.values())}

    @property
    def effective_shares(self) -> Reals:
        """For each draw, training that stays over its time."""
        return self.work_s / self.total_s


@dataclass
class Diary:
    """What happened when, in seconds from the start: training that is durable after each save,
    failures, and jobs from start to end."""

    saves: list[tuple[float, float]] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)
    jobs: list[tuple[float, float]] = field(default_factory=list)
    total_s: float = 0.0


@record(slots=False)
class _Attempts:
    """An attempt of each draw: its seconds, those in which its failure is noticed, and its saves
    that are durable by then, but for the one at the end or at the time limit. Rows are `done` with
    it, or reach the limit; `ended` says of each whether its job is over before its training is."""

    spent_s: Reals
    noticed_s: Reals
    saves: Reals
    done: Rows
    limited: Rows
    ended: NDArray[np.bool_]


class _Draws:
    """The draws that are not done: where each stands, and what it has used. `of` says which draw a
    row is; rows of draws that are done leave."""

    def __init__(self, run: Run, work_s: Reals) -> None:
        count = len(work_s)
        self.run, self.of = run, np.arange(count)
        self.rest_s = work_s.copy()
        self.now_s, self.failures, self.attempts = (np.zeros(count) for _ in range(3))
        self.restart, self.saving, self.detection, self.waiting, self.queue = (
            np.zeros(count) for _ in range(5)
        )
        self.left_s = np.full(count, float(run.chain.walltime_s) if run.chain else np.inf)
        self.spares = np.full(count, float(run.chain.spares if run.chain else 0))
        slots = _slots(run.pool, run.failures_per_s, count) if run.pool else 0
        self.back_s = np.zeros((count, slots))  # when each broken node is repaired

    def attempt(self, chances: Reals) -> _Attempts:
        """One attempt of each draw."""
        run = self.run
        fails_s = chances[0] / run.failures_per_s if run.failures_per_s else np.inf + chances[0]
        saves = np.ceil((self.rest_s - SETTLED_S) / run.interval_s) - 1
        ends_s = self.rest_s + saves * run.stall_s
        ends_s += run.restart_s + run.write_s
        spent_s = np.minimum(fails_s, self.left_s) if run.chain else fails_s
        done = np.flatnonzero(ends_s <= spent_s + SETTLED_S)
        spent_s[done] = ends_s[done]
        counted = np.floor((spent_s - (run.restart_s + run.write_s - run.stall_s)) / run.segment_s)
        counted = np.clip(counted, 0, saves)
        self.rest_s -= counted * run.interval_s
        self.saving += counted * run.stall_s
        self.restart += np.minimum(spent_s, run.restart_s)
        self.now_s += spent_s
        self.attempts += 1
        self.failures += 1
        self._finish(done)
        limited = np.empty(0, dtype=np.intp)
        if run.chain is not None:
            limited = np.setdiff1d(np.flatnonzero(self.left_s <= fails_s), done)
            self._save_at_limit(limited, counted[limited])
            self.failures[limited] -= 1
        noticed_s, ended = self._recover(done, limited, spent_s, chances)
        return _Attempts(spent_s, noticed_s, counted, done, limited, ended)

    def _finish(self, done: Rows) -> None:
        self.rest_s[done] = 0.0
        self.saving[done] += self.run.write_s
        self.failures[done] -= 1

    def _save_at_limit(self, rows: Rows, counted: Reals) -> None:
        """A save before the time limit keeps what was trained after the last one too; there is none
        where the job is too short for it."""
        run = self.run
        trained_s = self.left_s[rows] - run.restart_s - run.write_s
        whole = np.floor(np.maximum(trained_s, 0.0) / run.segment_s)
        partial = np.minimum(np.maximum(trained_s, 0.0) - whole * run.segment_s, run.interval_s)
        kept_s = (whole - counted) * run.interval_s + partial
        self.rest_s[rows] = np.maximum(self.rest_s[rows] - kept_s, 0.0)
        self.saving[rows] += (whole - counted) * run.stall_s + run.write_s * (trained_s >= 0)

    def _recover(
        self, done: Rows, limited: Rows, spent_s: Reals, chances: Reals
    ) -> tuple[Reals, NDArray[np.bool_]]:
        """Detection, and then a spare, a repair or the next job; returns the seconds of the former
        and whether a job ended."""
        run, ended = self.run, np.zeros(len(spent_s), dtype=np.bool_)
        noticed = np.full(len(spent_s), run.detection_s)
        if run.chain is not None:
            self.left_s -= spent_s
            noticed = np.minimum(noticed, self.left_s)
        noticed[done], noticed[limited] = 0.0, 0.0
        self.detection += noticed
        self.now_s += noticed
        if run.pool is not None:
            self._replace(done, chances[1] * run.pool.repair_s)
        if run.chain is not None:
            self.left_s -= noticed
            goes_on = (self.spares > 0) & (self.left_s > 0)
            goes_on[limited] = False
            self.spares -= goes_on
            ended = ~goes_on
            ended[done] = False
            waits_s = np.where(ended, chances[1] * run.chain.queue_s, 0.0)
            self.now_s += waits_s
            self.queue += waits_s
            self.left_s[ended] = run.chain.walltime_s
            self.spares[ended] = run.chain.spares
        return noticed, ended

    def _replace(self, done: Rows, repair_s: Reals) -> None:
        """The broken node takes the slot that was free longest; with every slot broken, the run
        waits until the first is repaired."""
        rows = np.arange(len(repair_s))
        slots = self.back_s.argmin(axis=1)
        free_s = self.back_s[rows, slots].copy()
        self.back_s[rows, slots] = self.now_s + repair_s
        self.back_s[done, slots[done]] = free_s[done]
        waits_s = np.maximum(self.back_s.min(axis=1) - self.now_s, 0.0)
        waits_s[done] = 0.0
        self.now_s += waits_s
        self.waiting += waits_s

    def leave(self, done: Rows, found: Lives) -> None:
        """Write down the draws that are done, and go on without them."""
        draws = self.of[done]
        found.total_s[draws] = self.now_s[done]
        found.failures[draws] = self.failures[done]
        found.attempts[draws] = self.attempts[done]
        for name in PARTS:
            found.parts_s[name][draws] = getattr(self, name)[done]
        for name in (*PARTS, "of", "rest_s", "now_s", "failures", "attempts", "left_s", "spares"):
            setattr(self, name, np.delete(getattr(self, name), done))
        self.back_s = np.delete(self.back_s, done, axis=0)


def draw_lives(run: Run, work_s: Reals, seed: int) -> Lives:
    """A life of the run for each of the `work_s`, the seconds of its training without a break."""
    check_progress(run)
    count = len(work_s)
    draws = _Draws(run, work_s)
    total_s, failures, attempts = (np.zeros(count) for _ in range(3))
    parts_s = {name: np.zeros(count) for name in PARTS}
    found = Lives(total_s, failures, attempts, work_s, parts_s)
    for chances in islice(chances_of(run, seed, count), MOST_ATTEMPTS):
        done = draws.attempt(chances if len(draws.of) == count else chances[:, draws.of]).done
        if len(done):
            draws.leave(done, found)
        if not len(draws.of):
            return found
    raise GoodputError(f"the run is not done after {MOST_ATTEMPTS:,} attempts")


def tell(run: Run, work_s: float, chances: Iterable[Sequence[float] | Reals]) -> Diary:
    """The life of the run whose training takes `work_s` without a break, by what happens by chance
    in each attempt: its time to a failure, then a repair or a wait in the queue, over their
    means."""
    draws, diary = _Draws(run, np.array([work_s])), Diary()
    job_s = 0.0
    for each in chances:
        now_s, kept_s = float(draws.now_s[0]), work_s - float(draws.rest_s[0])
        attempt = draws.attempt(np.array(each)[:, None])
        over_s = now_s + float(attempt.spent_s[0])
        saves = np.arange(attempt.saves[0] + 1)
        durable_s = now_s + run.restart_s + run.write_s - run.stall_s + saves * run.segment_s
        kept = (kept_s + saves * run.interval_s).tolist()
        diary.saves += zip(durable_s[1:].tolist(), kept[1:], strict=True)
        if len(attempt.done):
            diary.saves.append((over_s, work_s))
            diary.jobs.append((job_s, over_s))
            diary.total_s = over_s
            return diary
        if not len(attempt.limited):
            diary.failures.append(over_s)
        elif (held_s := work_s - float(draws.rest_s[0])) > kept[-1] + SETTLED_S:
            diary.saves.append((over_s, held_s))
        if attempt.ended[0]:
            diary.jobs.append((job_s, over_s + float(attempt.noticed_s[0])))
            job_s = float(draws.now_s[0])
    raise AssertionError("the chances end before the run is done")


def chances_of(run: Run, seed: int, draws: int) -> Iterator[Reals]:
    """What happens by chance in one attempt of each draw after the other, over the means."""
    random = np.random.default_rng(seed)
    kinds = 1 + (run.pool is not None or run.chain is not None)
    while True:
        yield random.standard_exponential((kinds, draws))


def _slots(pool: SparePool, failures_per_s: float, draws: int) -> int:
    """Slots for broken nodes: one more than the spares, or than are ever in repair at once."""
    mean = failures_per_s * pool.repair_s
    ever = math.ceil(mean + FAR * math.sqrt(mean + 1))
    return min(pool.nodes, ever, MOST_SLOTS // draws) + 1
