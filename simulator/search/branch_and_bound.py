"""Best first: bounds are refined and plans simulated, always those that may be fastest, until no
plan that is left can be faster than those found."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from operator import itemgetter
from typing import Protocol

from simulator.predict import Prediction
from simulator.search.frontier import Candidate, Frontier, Tally
from simulator.search.process_pool import ProcessPool
from simulator.search.progress import Progress
from simulator.search.root_nodes import NEVER, WORTH, shares
from simulator.search.space import Space
from simulator.search.warm_start import likely
from simulator.search.workers import Outcome, Workers, WorkerSetup
from topologies.errors import MachineError
from workload.plan import Plan

Place = tuple[int, int, str]


class OpenNodes(Protocol):
    """What is left of a space."""

    @property
    def tally(self) -> Tally:
        """What came up."""
        ...

    @property
    def lowest(self) -> int:
        """The least value that any plan can have that was not simulated."""
        ...

    def exceed(self, plan: Plan, peak_bytes: int) -> None:
        """Note that a plan has no room."""
        ...

    def step(self, threshold: int) -> list[Outcome]:
        """Refine what may undercut a value, or simulate plans that may: what became of them."""
        ...


class SingleProcess:
    """A whole space whose bounds are refined in this process; a crew, if any, simulates."""

    def __init__(self, space: Space, setup: WorkerSetup, crew: ProcessPool | None) -> None:
        (rows,) = shares(space, 1)
        self._frontier = Frontier(space, setup.machinery, setup.objective, rows)
        self._simulate, self._crew = setup.simulate, crew

    @property
    def tally(self) -> Tally:
        """See `OpenNodes`."""
        return self._frontier.tally

    @property
    def lowest(self) -> int:
        """See `OpenNodes`."""
        return self._frontier.lowest

    def exceed(self, plan: Plan, peak_bytes: int) -> None:
        """See `OpenNodes`."""
        self._frontier.exceed(plan, peak_bytes)

    def step(self, threshold: int) -> list[Outcome]:
        """See `OpenNodes`."""
        self._frontier.threshold = threshold
        found = self._frontier.advance(1 if self._crew is None else self._crew.count)
        plans = [plan for _, plan in found]
        if self._crew is None or len(plans) <= 1:
            return list(zip(found, map(self._simulate, plans), strict=True))
        return list(zip(found, self._crew.map(self._simulate, plans), strict=True))


class BranchAndBound:
    """The search of a space for the `top` best plans that fit."""

    def __init__(
        self, space: Space, setup: WorkerSetup, crew: ProcessPool | None = None, top: int = 1
    ) -> None:
        self._space, self._setup, self._crew, self._top = space, setup, crew, top
        self._found: list[tuple[Place, Prediction]] = []
        self._guessed: set[Plan] = set()
        self._tally, self._simulated = Tally(), 0

    def run(self) -> Iterator[Progress]:
        """Search step by step; the last state is the answer."""
        left: OpenNodes
        if self._crew is None or len(self._space) < WORTH:
            left = SingleProcess(self._space, self._setup, self._crew)
            yield self._state(left)
        else:
            left = team = Workers(self._crew)
            yield self._state(left)
            team.settle(self._setup)
        self._guess()
        yield self._state(left)
        while left.lowest < self._threshold:
            for candidate, result in left.step(self._threshold):
                self._record(candidate, result, left)
            yield self._state(left)

    def _guess(self) -> None:
        """Find any good plan before the space is bounded, which may take long."""
        if (some := likely(self._space)) is None:
            return
        for state in BranchAndBound(some, self._setup).run():
            if state.found:
                break
        self._simulated += state.simulated
        for prediction in state.found:
            self._guessed.add(prediction.plan)
            self._insert(prediction)

    @property
    def _threshold(self) -> int:
        """What a plan must undercut to be among the best. Plans as good as the last of these are
        looked at too: then the answer does not depend on which was found first."""
        return self._found[self._top - 1][0][0] + 1 if len(self._found) >= self._top else NEVER

    def _record(
        self, candidate: Candidate, result: Prediction | MachineError, left: OpenNodes
    ) -> None:
        _, plan = candidate
        if isinstance(result, MachineError):
            self._tally.refuse(1, str(result))
            return
        self._simulated += 1
        if result.memory.peak_bytes > self._setup.machinery.capacity_bytes:
            left.exceed(plan, result.memory.peak_bytes)
        elif plan not in self._guessed:
            self._insert(result)

    def _insert(self, prediction: Prediction) -> None:
        place = self._setup.objective.place(prediction)
        insort(self._found, (place, prediction), key=itemgetter(0))

    def _state(self, left: OpenNodes) -> Progress:
        """How far the search is."""
        tally = self._tally + left.tally
        found = self._found[: self._top]
        best = found[0][0][0] if found else NEVER
        is_whole = tally.shapes == len(self._space)
        show = self._setup.objective.shown
        return Progress(
            self._space.plans,
            tally.fitting,
            self._simulated,
            show(min(left.lowest, best) if is_whole else 0),
            show(best),
            tuple(prediction for _, prediction in found),
            is_whole and left.lowest >= self._threshold,
            tally.unpredicted,
            tally.reason,
            tally.shapes / len(self._space),
            0 if tally.least_bytes == NEVER else tally.least_bytes,
        )
