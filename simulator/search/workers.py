"""Processes that each refine the bounds of a share of a space, and simulate plans of any share."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from simulator.pool import Pool
from simulator.predict import Prediction
from simulator.search.around import Judge
from simulator.search.bounds.batched_programs import kinds, sizes_of
from simulator.search.frontier import Candidate, Candidates, Frontier, keep
from simulator.search.problem import SearchProblem
from simulator.search.progress import Tally
from simulator.search.root_nodes import NEVER, Machinery
from simulator.search.space import Space, space_of
from topologies.errors import MachineError
from topologies.records import record
from topologies.session import current_session, gc_paused
from workload.plan import Plan
from workload.sizes.arrays import Indices

WORK_S = 0.2  # before a process says how far it is
Simulated = Prediction | MachineError
Outcome = tuple[Candidate, Simulated]


@record(slots=False)
class WorkerSetup:
    """What a worker process needs: the parts of the core space, the machine, how plans are judged,
    and which share of how many is its own."""

    problems: Sequence[SearchProblem]
    machinery: Machinery
    judge: Judge
    share: tuple[int, int] = (0, 1)


@record(slots=False)
class Update:
    """What changed since a worker last ran: the threshold, and plans that do not fit, with their
    peak bytes."""

    threshold: int
    too_large: Sequence[tuple[Plan, int]]


@record(slots=False)
class WorkerReport:
    """A worker's share: its counts, the lowest bound of its open nodes, plans to simulate that came
    up since the last report, those with the lowest bounds of each family of plans, and whether all
    shapes are bounded."""

    tally: Tally
    lowest: int
    next_plans: list[Candidate]
    candidates: Candidates
    is_bounded: bool = True


class Frontiers:
    """The open nodes of a share of several spaces, the parts of a problem, refined as one: that
    with the lowest bound first."""

    def __init__(self, spaces: Iterable[Space], setup: WorkerSetup) -> None:
        how = setup.machinery, setup.judge.objective
        self._parts = [Frontier(share_of(space, *setup.share), *how) for space in spaces]

    @property
    def candidates(self) -> Candidates:
        """The plans with the lowest bounds of each family of plans, of all parts."""
        return together(part.candidates for part in self._parts)

    @property
    def tally(self) -> Tally:
        """Counts of all parts."""
        return sum((part.tally for part in self._parts), Tally())

    @property
    def is_bounded(self) -> bool:
        """Whether all shapes of all parts are bounded."""
        return all(part.is_bounded for part in self._parts)

    @property
    def lowest(self) -> int:
        """The least value that a plan of any part can have."""
        return min(part.lowest for part in self._parts)

    def set_threshold(self, threshold: int) -> None:
        """Set what a plan must undercut."""
        for part in self._parts:
            part.threshold = threshold

    def exceed(self, plan: Plan, peak_bytes: int) -> None:
        """Note that a plan does not fit; a plan is in one part alone."""
        for part in self._parts:
            part.exceed(plan, peak_bytes)

    def advance(self, most: int = 1) -> list[Candidate]:
        """Bound some shapes; then refine a node, or return next plans to simulate that may fit."""
        return min(self._parts, key=lambda part: (part.is_bounded, part.lowest)).advance(most)


def share_of(space: Space, number: int, count: int) -> Space:
    """The rows of one of so many shares of a space: programs that are mostly alike are of one, and
    those of the same sizes, whose ops take the same time."""
    if count == 1:
        return space
    alike: dict[bytes, list[Indices]] = {}
    for rows in kinds(space, np.arange(len(space), dtype=np.int64), together=True):
        alike.setdefault(sizes_of(space, rows), []).append(rows)
    shares: list[list[Indices]] = [[] for _ in range(count)]
    for parts in sorted(alike.values(), key=len, reverse=True):
        min(shares, key=len).extend(parts)
    none = np.zeros(0, dtype=np.int64)
    return space.only(np.sort(np.concatenate([none, *shares[number]])))


def together(several: Iterable[Candidates]) -> Candidates:
    """The plans with the lowest bounds of each family, of several shares."""
    found: Candidates = {}
    for candidates in several:
        for code, own in candidates.items():
            for bound, plan in own:
                keep(found, code, bound, plan)
    return found


def settle(setup: WorkerSetup) -> None:
    """Give this process its share of the space, which its session keeps."""
    current_session().keep(Frontiers(map(space_of, setup.problems), setup))
    current_session().keep(setup.judge)


def work(update: Update) -> WorkerReport:
    """Refine bounds for `WORK_S`, or until there is a plan to simulate."""
    frontier = current_session().the(Frontiers)
    frontier.set_threshold(update.threshold)
    for plan, peak_bytes in update.too_large:
        frontier.exceed(plan, peak_bytes)
    found: list[Candidate] = []
    until = time.monotonic() + WORK_S
    with gc_paused():
        while frontier.lowest < NEVER and not found:
            found = frontier.advance()
            if time.monotonic() >= until:
                break
    return WorkerReport(frontier.tally, frontier.lowest, found, frontier.candidates)


def bound(threshold: int) -> WorkerReport:
    """Bound some of the space for `WORK_S`, without refining."""
    frontier = current_session().the(Frontiers)
    frontier.set_threshold(threshold)
    until = time.monotonic() + WORK_S
    with gc_paused():
        while not frontier.is_bounded:
            frontier.advance()
            if time.monotonic() >= until:
                break
    how = frontier.candidates, frontier.is_bounded
    return WorkerReport(frontier.tally, frontier.lowest, [], *how)


def simulated(plan: Plan) -> Simulated:
    """Simulate a plan."""
    with gc_paused():
        return current_session().the(Judge).simulate(plan)


class Workers:
    """The processes of a pool, each with a share of a space.

    A free process simulates the waiting plan with the lowest bound, unless its own share has an
    open node with a lower one, which it then refines. Until enough plans are found it simulates
    any.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: list[tuple[int, int, Plan]] = []
        self._reports: dict[int, WorkerReport] = {}
        self._simulating: dict[int, Candidate] = {}
        self._too_large: list[tuple[Plan, int]] = []
        self._told = [0] * pool.count
        self._counter = count()
        self._has_begun = False

    def settle(self, setup: WorkerSetup) -> None:
        """Give every worker its share."""
        for number in range(self._pool.count):
            self._pool.submit(number, settle, replace(setup, share=(number, self._pool.count)))

    @property
    def tally(self) -> Tally:
        """Counts of all shares."""
        return sum((report.tally for report in self._reports.values()), Tally())

    @property
    def lowest(self) -> int:
        """A lower bound of all plans that were not simulated."""
        if len(self._reports) < self._pool.count:
            return 0
        bounds = [report.lowest for report in self._reports.values()]
        bounds += [bound for bound, _ in self._simulating.values()]
        return min([*bounds, self._waiting[0][0] if self._waiting else NEVER])

    @property
    def candidates(self) -> Candidates:
        """The candidates of all shares."""
        return together(report.candidates for report in self._reports.values())

    def bound(self, threshold: int) -> bool:
        """Have each share bounded further; False when all are."""
        left = [
            number
            for number in range(self._pool.count)
            if number not in self._reports or not self._reports[number].is_bounded
        ]
        for number in {*left} & {*self._pool.idle}:
            self._pool.submit(number, bound, threshold)
        if left:
            number, answer = self._pool.wait()
            if isinstance(answer, WorkerReport):
                self._reports[number] = answer
        return bool(left)

    def exceed(self, plan: Plan, peak_bytes: int) -> None:
        """Tell all workers that a plan does not fit."""
        self._too_large.append((plan, peak_bytes))

    def step(self, threshold: int) -> list[Outcome]:
        """Give each idle worker a task, then wait for one result: a simulated plan, if it was
        one."""
        for number in sorted(self._pool.idle, key=self._lowest_of, reverse=True):
            self._assign(number, threshold)
        number, answer = self._pool.wait()
        if isinstance(answer, WorkerReport):
            self._reports[number] = answer
            for least, plan in answer.next_plans:
                heapq.heappush(self._waiting, (least, next(self._counter), plan))
        if number in self._simulating:
            return [(self._simulating.pop(number), answer)]
        return []

    def finish(self) -> None:
        """Wait until no process is at work."""
        self._pool.clear()
        self._simulating.clear()

    def _lowest_of(self, number: int) -> int:
        return self._reports[number].lowest if number in self._reports else 0

    def _assign(self, number: int, threshold: int) -> None:
        lowest = self._lowest_of(number)
        soonest = self._waiting[0][0] if self._waiting else NEVER
        is_first = threshold == NEVER or not self._has_begun  # until enough are found, any will do
        if soonest < threshold and (is_first or soonest <= lowest):
            self._has_begun = True
            bound, _, plan = heapq.heappop(self._waiting)
            self._simulating[number] = bound, plan
            self._pool.submit(number, simulated, plan)
        elif lowest < threshold:
            fresh = self._too_large[self._told[number] :]
            self._told[number] = len(self._too_large)
            self._pool.submit(number, work, Update(threshold, fresh))
