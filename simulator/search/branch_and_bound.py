"""Branch and bound over the core space: all plans of which lower bounds are known.

Objective: the least step time, or the least energy. A node of the tree is a set of plans with a
lower bound of the objective over all of them; a leaf is one plan, which is simulated. All shapes
are bounded first; then the open node with the lowest bound is refined (`frontier.py`), until none
has a bound below the best plan found.

Invariant: the bound of a node is never above the simulated value of any plan in it, and refining a
node does not lose a plan. So when it ends, no plan that was not simulated is better than the best
one; stopped earlier, the lowest bound of the open nodes says by how much it may be missed. Ties are
kept open (a plan must be worse to be discarded), so the answer does not depend on the order in
which plans are simulated.

Cost: bounds of millions of plans as arrays, and a simulation for each leaf that is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from simulator.pool import Pool
from simulator.predict import Prediction
from simulator.search.around import Judge
from simulator.search.frontier import Candidate, Candidates
from simulator.search.progress import Tally
from simulator.search.root_nodes import NEVER, WORTH
from simulator.search.space import Space
from simulator.search.workers import Frontiers, Outcome, Workers, WorkerSetup
from topologies.errors import MachineError
from workload.plan import Plan


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

    @property
    def candidates(self) -> Candidates:
        """The plans with the lowest bounds of each family of plans."""
        ...

    def bound(self, threshold: int) -> bool:
        """Bound further shapes, of plans that may undercut a threshold; False when all are."""
        ...

    def exceed(self, plan: Plan, peak_bytes: int) -> None:
        """Note that a plan needs more memory than there is."""
        ...

    def step(self, threshold: int) -> list[Outcome]:
        """Refine nodes that may undercut a threshold, or simulate plans: returns these."""
        ...

    def finish(self) -> None:
        """End what is under way, as no plan is looked for any more."""
        ...


class SingleProcess:
    """Whole spaces whose bounds are refined in this process; a pool, if any, simulates."""

    def __init__(self, spaces: Sequence[Space], setup: WorkerSetup, pool: Pool | None) -> None:
        self._frontier = Frontiers(spaces, setup)
        self._simulate, self._pool = setup.judge.simulate, pool

    @property
    def tally(self) -> Tally:
        """See `OpenNodes`."""
        return self._frontier.tally

    @property
    def lowest(self) -> int:
        """See `OpenNodes`."""
        return self._frontier.lowest

    @property
    def candidates(self) -> Candidates:
        """See `OpenNodes`."""
        return self._frontier.candidates

    def bound(self, threshold: int) -> bool:
        """See `OpenNodes`."""
        if self._frontier.is_bounded:
            return False
        self._frontier.set_threshold(threshold)
        self._frontier.advance()
        return True

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

    def finish(self) -> None:
        """See `OpenNodes`."""


class BranchAndBound:
    """The search of spaces, the parts of a core space, for the best plan that fits."""

    def __init__(
        self, spaces: Sequence[Space], setup: WorkerSetup, pool: Pool | None = None
    ) -> None:
        self._judge: Judge = setup.judge
        self._shapes, self.plans = sum(map(len, spaces)), sum(space.plans for space in spaces)
        self.best: Prediction | None = None
        self._tally, self.simulated = Tally(), 0
        self._nodes: OpenNodes
        if pool is None or self._shapes < WORTH:
            self._nodes = SingleProcess(spaces, setup, pool)
        else:
            self._nodes = workers = Workers(pool)
            workers.settle(setup)

    def bound(self, best: Prediction | None = None) -> Iterator[None]:
        """Bound all shapes, step by step, given the best known plan."""
        self.best = best
        while self._nodes.bound(self._threshold):
            yield

    @property
    def candidates(self) -> Candidates:
        """The plans with the lowest bounds of each family of plans, once all shapes are bounded."""
        return self._nodes.candidates

    def refine(self, best: Prediction | None) -> Iterator[None]:
        """Search for plans better than the best known one, step by step."""
        self.best = best
        while self.lowest < self._threshold:
            for candidate, result in self._nodes.step(self._threshold):
                self._record(candidate, result)
            yield
        self._nodes.finish()

    @property
    def lowest(self) -> int:
        """A lower bound of all plans that were not simulated; 0 until all shapes are bounded."""
        return self._nodes.lowest

    @property
    def is_done(self) -> bool:
        """Whether no plan of the space is better than the best one."""
        return self.bounded == 1 and self.lowest >= self._threshold

    @property
    def tally(self) -> Tally:
        """Counts of all that was bounded and refused."""
        return self._tally + self._nodes.tally

    @property
    def bounded(self) -> float:
        """The share of shapes that were bounded."""
        return self._nodes.tally.shapes / self._shapes

    @property
    def _threshold(self) -> int:
        """What a plan must undercut to be the best, ties included."""
        return NEVER if self.best is None else self._judge.objective.of(self.best) + 1

    def _record(self, candidate: Candidate, result: Prediction | MachineError) -> None:
        _, plan = candidate
        if isinstance(result, MachineError):
            self._tally.refuse(1, str(result))
            return
        self.simulated += 1
        if result.memory.peak_bytes > self._judge.room_bytes:
            self._nodes.exceed(plan, result.memory.peak_bytes)
        elif self.best is None or self._judge.place(result) < self._judge.place(self.best):
            self.best = result
