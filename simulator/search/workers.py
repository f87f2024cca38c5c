"""Processes that each refine the bounds of a share of a space, and simulate plans of any share."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from simulator.gc_pause import gc_paused
from simulator.predict import Prediction
from simulator.search.frontier import Candidate, Frontier, Tally
from simulator.search.objective import Objective
from simulator.search.problem import SearchProblem
from simulator.search.process_pool import ProcessPool, WorkerState
from simulator.search.root_nodes import NEVER, Machinery, shares
from simulator.search.space import space_of
from topologies.errors import MachineError
from workload.plan import Plan

WORK_S = 0.2  # before a process says how far it is
Simulated = Prediction | MachineError
Outcome = tuple[Candidate, Simulated]


@dataclass(frozen=True)
class WorkerSetup:
    """What a process needs to know of a search, and which of how many shares is its own."""

    question: SearchProblem
    machinery: Machinery
    objective: Objective
    simulate: Callable[[Plan], Simulated]
    share: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Update:
    """What a plan must undercut by now, and plans that turned out to have no room, each with its
    peak in bytes."""

    threshold: int
    too_large: Sequence[tuple[Plan, int]]


@dataclass(frozen=True)
class WorkerReport:
    """How far a process is with its share: all that came up, the least value of what is left, and
    the plans to be simulated since the last report."""

    tally: Tally
    lowest: int
    candidates: list[Candidate]


def settle(own: WorkerState, setup: WorkerSetup) -> None:
    """Take a share of the space."""
    number, count = setup.share
    space = space_of(setup.question)
    rows = shares(space, count)[number]
    own["frontier"] = Frontier(space, setup.machinery, setup.objective, rows)
    own["simulate"] = setup.simulate


def work(own: WorkerState, news: Update) -> WorkerReport:
    """Refine bounds for a while, or until there is a plan."""
    frontier: Frontier = own["frontier"]
    frontier.threshold = news.threshold
    for plan, peak_bytes in news.too_large:
        frontier.exceed(plan, peak_bytes)
    found: list[Candidate] = []
    until = time.monotonic() + WORK_S
    with gc_paused():
        while frontier.lowest < NEVER and not found:
            found = frontier.advance()
            if time.monotonic() >= until:
                break
    return WorkerReport(frontier.tally, frontier.lowest, found)


def simulated(own: WorkerState, plan: Plan) -> Simulated:
    """Simulate a plan."""
    with gc_paused():
        prediction: Simulated = own["simulate"](plan)
    return prediction


class Workers:
    """The processes of a crew, each with a share of a space.

    Best first: a process simulates the plan with the lowest bound of all that wait, unless it has
    something in its own share that is bounded lower still, and refines that. But it simulates what
    there is as long as too few plans are found, and the first one at once.
    """

    def __init__(self, crew: ProcessPool) -> None:
        self._crew = crew
        self._waiting: list[tuple[int, int, Plan]] = []
        self._reports: dict[int, WorkerReport] = {}
        self._simulating: dict[int, Candidate] = {}
        self._too_large: list[tuple[Plan, int]] = []
        self._told = [0] * crew.count
        self._counter = count()
        self._has_begun = False

    def settle(self, setup: WorkerSetup) -> None:
        """Hand out the shares."""
        for number in range(self._crew.count):
            self._crew.ask(number, settle, replace(setup, share=(number, self._crew.count)))

    @property
    def tally(self) -> Tally:
        """What came up in all shares."""
        return sum((report.tally for report in self._reports.values()), Tally())

    @property
    def lowest(self) -> int:
        """The least value that any plan can have that was not simulated."""
        if len(self._reports) < self._crew.count:
            return 0
        bounds = [report.lowest for report in self._reports.values()]
        bounds += [bound for bound, _ in self._simulating.values()]
        return min([*bounds, self._waiting[0][0] if self._waiting else NEVER])

    def exceed(self, plan: Plan, peak_bytes: int) -> None:
        """Let all know that a plan has no room."""
        self._too_large.append((plan, peak_bytes))

    def step(self, threshold: int) -> list[Outcome]:
        """See to it that all have something to do that may undercut the threshold, and wait until
        one of them is through with it: what became of a plan, if it was one."""
        for number in sorted(self._crew.free, key=self._lowest_of, reverse=True):
            self._employ(number, threshold)
        number, answer = self._crew.answer()
        if isinstance(answer, WorkerReport):
            self._reports[number] = answer
            for bound, plan in answer.candidates:
                heapq.heappush(self._waiting, (bound, next(self._counter), plan))
        if number in self._simulating:
            return [(self._simulating.pop(number), answer)]
        return []

    def _lowest_of(self, number: int) -> int:
        return self._reports[number].lowest if number in self._reports else 0

    def _employ(self, number: int, threshold: int) -> None:
        lowest = self._lowest_of(number)
        soonest = self._waiting[0][0] if self._waiting else NEVER
        is_first = threshold == NEVER or not self._has_begun  # until enough are found, any will do
        if soonest < threshold and (is_first or soonest <= lowest):
            self._has_begun = True
            bound, _, plan = heapq.heappop(self._waiting)
            self._simulating[number] = bound, plan
            self._crew.ask(number, simulated, plan)
        elif lowest < threshold:
            fresh = self._too_large[self._told[number] :]
            self._told[number] = len(self._too_large)
            self._crew.ask(number, work, Update(threshold, fresh))
