"""Branch and bound over all legal plans.

Objective: the least step time, or the least energy. A node of the tree is a set of plans with a
lower bound of the objective over all of them; a leaf is one plan, which is simulated. The open node
with the lowest bound is refined first (`frontier.py`), and the search ends when no open node has a
bound below the last of the plans found.

Invariant: the bound of a node is never above the simulated value of any plan in it, and refining a
node does not lose a plan. So when the search ends, no plan that was not simulated is better than
those found; stopped earlier, the lowest bound of the open nodes says by how much they may be
missed. Ties are kept open (a plan must be worse to be discarded), so the answer does not depend on
the order in which plans are simulated.

Cost: bounds of millions of plans as arrays, and a simulation for each leaf that is reached.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Protocol

from simulator.predict import Prediction
from simulator.search.frontier import Candidate
from simulator.search.problem import SearchProblem
from simulator.search.process_pool import ProcessPool
from simulator.search.progress import Progress, Tally
from simulator.search.root_nodes import NEVER, WORTH
from simulator.search.space import Space
from simulator.search.warm_start import FEW, likely, shape_of
from simulator.search.workers import Frontiers, Outcome, Workers, WorkerSetup
from topologies.errors import MachineError
from workload.plan import Plan

Place = tuple[int, int, str]


class OpenNodes(Protocol):
    """The nodes of a search tree that are still open."""

    @property
    def tally(self) -> Tally:
        """Counts of what was bounded."""
        ...

    @property
    def lowest(self) -> int:
        """A lower bound of all plans that were not simulated."""
        ...

    def exceed(self, plan: Plan, peak_bytes: int) -> None:
        """Note that a plan needs more memory than there is."""
        ...

    def step(self, threshold: int) -> list[Outcome]:
        """Refine nodes that may undercut a threshold, or simulate plans: returns these."""
        ...


class SingleProcess:
    """Whole spaces whose bounds are refined in this process; a pool, if any, simulates."""

    def __init__(
        self, spaces: Sequence[Space], setup: WorkerSetup, pool: ProcessPool | None
    ) -> None:
        self._frontier = Frontiers(spaces, setup)
        self._simulate, self._pool = setup.simulate, pool

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
        self._frontier.set_threshold(threshold)
        found = self._frontier.advance(1 if self._pool is None else self._pool.count)
        plans = [plan for _, plan in found]
        if self._pool is None or len(plans) <= 1:
            return list(zip(found, map(self._simulate, plans), strict=True))
        return list(zip(found, self._pool.map(self._simulate, plans), strict=True))


class BranchAndBound:
    """The search of spaces, the parts of a problem, for the `top` best plans that fit."""

    def __init__(
        self,
        spaces: Sequence[Space],
        setup: WorkerSetup,
        pool: ProcessPool | None = None,
        top: int = 1,
    ) -> None:
        self._spaces, self._setup, self._pool, self._top = spaces, setup, pool, top
        self._shapes, self._plans = sum(map(len, spaces)), sum(space.plans for space in spaces)
        self._found: list[tuple[Place, Prediction]] = []
        self._warm_plans: set[Plan] = set()
        self._tally, self._simulated = Tally(), 0

    def run(self) -> Iterator[Progress]:
        """Search step by step; the last state is the answer."""
        nodes: OpenNodes
        problems = [space.problem for space in self._spaces]
        small = [space for space in map(likely, self._spaces) if space is not None]
        if self._pool is None or self._shapes < WORTH:
            nodes = SingleProcess(self._spaces, self._setup, self._pool)
            yield self._state(nodes)
        else:
            self._spaces = []  # large, and from now on the workers have them
            nodes = workers = Workers(self._pool)
            yield self._state(nodes)
            workers.settle(self._setup)
        self._warm_start(small, problems)
        yield self._state(nodes)
        while nodes.lowest < self._threshold:
            for candidate, result in nodes.step(self._threshold):
                self._record(candidate, result, nodes)
            yield self._state(nodes)

    def _warm_start(self, small: Sequence[Space], problems: Sequence[SearchProblem]) -> None:
        """Find good plans before the space is bounded, which may take long: a first incumbent, and
        as many in other orders of its shape as are asked for."""
        for plan in self._first(small, 1):
            if 1 < self._top <= FEW:
                orders = (shape_of(plan, problem) for problem in problems)
                self._first([space for space in orders if space is not None], self._top)

    def _first(self, spaces: Sequence[Space], count: int) -> list[Plan]:
        """The first plans that a search of some small spaces finds, and keep them."""
        if not spaces:
            return []
        for state in BranchAndBound(spaces, self._setup, top=count).run():
            if len(state.found) == count:
                break
        self._simulated += state.simulated
        for prediction in state.found:
            if prediction.plan not in self._warm_plans:
                self._warm_plans.add(prediction.plan)
                self._insert(prediction)
        return [prediction.plan for prediction in state.found]

    @property
    def _threshold(self) -> int:
        """What a plan must undercut to be among the best, ties with the last of these included."""
        return self._found[self._top - 1][0][0] + 1 if len(self._found) >= self._top else NEVER

    def _record(
        self, candidate: Candidate, result: Prediction | MachineError, nodes: OpenNodes
    ) -> None:
        _, plan = candidate
        if isinstance(result, MachineError):
            self._tally.refuse(1, str(result))
            return
        self._simulated += 1
        if result.memory.peak_bytes > self._setup.machinery.capacity_bytes:
            nodes.exceed(plan, result.memory.peak_bytes)
        elif plan not in self._warm_plans:
            self._insert(result)

    def _insert(self, prediction: Prediction) -> None:
        place = self._setup.objective.place(prediction)
        insort(self._found, (place, prediction), key=itemgetter(0))

    def _state(self, nodes: OpenNodes) -> Progress:
        """How far the search is."""
        tally = self._tally + nodes.tally
        found = self._found[: self._top]
        best = found[0][0][0] if found else NEVER
        is_whole = tally.shapes == self._shapes
        show = self._setup.objective.shown
        return Progress(
            self._plans,
            tally.fitting,
            self._simulated,
            show(min(nodes.lowest, best) if is_whole else 0),
            show(best),
            tuple(prediction for _, prediction in found),
            is_whole and nodes.lowest >= self._threshold,
            tally.unpredicted,
            tally.reason,
            tally.shapes / self._shapes,
            0 if tally.least_bytes == NEVER else tally.least_bytes,
        )
