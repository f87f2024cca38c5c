"""A walk from plan to plan: neighbours are simulated until none of them is better.

A plan is better than another if it fits, or needs less memory where none fits, and then if its
value is lower by a share WORTH at least. Two changes at a time are tried where one alone cannot
tell: of a neighbour that is faster and does not fit, the changes that save memory; of one that is
nearly as fast and needs less memory, those that spend it. A kind of change that can save no share
worth it, since the step hardly waits for what it changes, is left out.

Invariant: a walk ends at a plan that none of its neighbours betters, or after as many simulations
as it may have. Nothing is proved: a plan some further changes away may be better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from simulator.explain.memory_levers import least_bytes
from simulator.predict import Prediction
from simulator.search.families import family_of
from simulator.search.neighbours import KINDS, legal, neighbours, savers, spenders
from simulator.search.objective import Objective
from simulator.search.problem import SearchProblem
from topologies.errors import MachineError
from topologies.records import record
from workload.plan import Plan
from workload.recomputation.parts import FULL, NONE

WORTH = 0.003  # of a value: less is not worth a change, and decides nothing
NEAR = 1.1  # of the best value: how slow a plan with more room may be
ROOMIER = 0.95  # of the best plan's memory: what counts as more room
DEAR = 1.15  # times as long a step takes at least whose layers run again whole
MOST = 200  # simulations of a walk
KEPT = 10  # plans of a walk that are kept for the answer
# What of a step some kinds of changes can save: what it waits for on these axes.
SAVES = {
    "schedule": ("pp",),
    "dispatcher": ("ep", "edp"),
    "context": ("cp",),
    "order": ("tp", "y", "z", "cp", "dp", "pp", "ep", "edp"),
    "overlap": ("tp", "y", "z", "cp", "dp", "pp", "ep", "edp", "ends"),
}
Result = Prediction | MachineError
Simulate = Callable[[Plan], Result]
Standing = tuple[int, int]  # bytes that it needs beyond what there is, and its value


@record(slots=False)
class Judge:
    """How the plans of a problem are simulated, and which is the better of two."""

    problem: SearchProblem
    simulate: Simulate
    objective: Objective
    room_bytes: int

    def standing(self, prediction: Prediction) -> Standing:
        """Where a plan stands among others, the best with the least."""
        over = prediction.memory.peak_bytes - self.room_bytes
        return max(over, 0), self.objective.of(prediction)

    def fits(self, prediction: Prediction) -> bool:
        """Whether a plan fits."""
        return prediction.memory.peak_bytes <= self.room_bytes

    def place(self, prediction: Prediction) -> tuple[int, int, str]:
        """Where a plan that fits stands among others; no two have the same place."""
        return self.objective.place(prediction)

    def betters(self, prediction: Prediction, best: Prediction) -> bool:
        """Whether a plan is better than another."""
        own, other = self.standing(prediction), self.standing(best)
        return own[0] < other[0] or (own[0] == other[0] and own[1] < other[1] * (1 - WORTH))


class Walk:
    """A walk from a plan, within its family if one is given, of at most so many simulations.

    It leaves out neighbours that it may `skip`, unless their room is wanted, and simulates
    `at_once` plans by `every`, which may be several processes.
    """

    def __init__(
        self,
        judge: Judge,
        start: Prediction,
        *,
        family: str = "",
        most: int = MOST,
        skip: Callable[[Plan], bool] = lambda _: False,
        every: Callable[[Sequence[Plan]], Iterable[Result]] | None = None,
        at_once: int = 1,
    ) -> None:
        self._judge, self._family, self._most, self._skip = judge, family, most, skip
        self._every = every or partial(map, judge.simulate)
        self._at_once = at_once
        self.best = start
        self.found: dict[Plan, Result] = {start.plan: start}

    @property
    def simulated(self) -> int:
        """How many plans were simulated on the way."""
        return len(self.found) - 1

    @property
    def best_ones(self) -> list[Prediction]:
        """The best plan, and the KEPT best of all others that fit."""
        every = (each for each in self.found.values() if isinstance(each, Prediction))
        fit = filter(self._judge.fits, every)
        return [self.best, *sorted(fit, key=self._judge.place)[:KEPT]]

    def run(self) -> Prediction:
        """The last plan of the walk."""
        kinds, at, still = list(KINDS), 0, 0
        self._fills_memory()
        while still < len(kinds) and self.simulated < self._most:
            if self._saves_memory():
                continue
            if self._may_save(kinds[at]) and self._improves(kinds[at]):
                still = 0
            else:
                at, still = (at + 1) % len(kinds), still + 1
        return self.best

    def _fills_memory(self) -> None:
        """Take the largest micro-batch that seems to fit, where that is better: what a device has
        beside states grows with it, and a pipeline has as many micro-batches as stages."""
        plan, memory = self.best.plan, self.best.memory
        tokens = memory.parts.get("activations", 0)
        left = self._judge.room_bytes - memory.peak_bytes + tokens
        times = min(left // max(tokens, 1), plan.micro_batches // plan.pp)
        while times > 1:
            times = 1 << (times.bit_length() - 1)
            other = legal(self._judge.problem, plan, {"mbs": plan.mbs * times})
            if other is not None and (self._takes([other]) or self._fits(other)):
                return
            times //= 2

    def _saves_memory(self) -> bool:
        """Whether the best plan does not fit and one in its grid needs less memory: that which
        recomputes most first, since from there a plan that fits is found in fewer steps."""
        if self._judge.fits(self.best):
            return False
        plan, problem = self.best.plan, self._judge.problem
        whole = legal(problem, plan, {"recompute": FULL})
        if whole is not None and self._takes([whole]):
            self._fills_memory()
            return True
        return any(self._takes([other]) for _, other in savers(problem, plan))

    def _improves(self, kind: str) -> bool:
        """Whether some neighbour of a kind, alone or with another change, is better than the best,
        which it then is."""
        plans = [*neighbours(self._judge.problem, self.best.plan, kind)]
        if not self._wants_room:  # else what may be skipped may leave room for another change
            plans = [plan for plan in plans if not self._skip(plan)]
        for at in range(0, len(plans), self._at_once):
            some = plans[at : at + self._at_once]
            if self._takes(some):
                return True
            known = [self.found.get(plan) for plan in some]
            each = (result for result in known if isinstance(result, Prediction))
            if any(map(self._takes_with_another, each)):
                return True
        return False

    def _takes_with_another(self, known: Prediction) -> bool:
        """Whether a neighbour with another change is better."""
        judge = self._judge
        (over, value), (missing, best) = judge.standing(known), judge.standing(self.best)
        if missing:
            return False
        if over and value < best * (1 - WORTH):
            return self._takes_saving(known)
        roomier = known.memory.peak_bytes < ROOMIER * self.best.memory.peak_bytes
        if not over and roomier and value < NEAR * best and self._wants_room:
            return self._takes([*spenders(judge.problem, known.plan)])
        return False

    @property
    def _wants_room(self) -> bool:
        """Whether a plan in the grid of the best one is faster and does not fit."""
        best = self._judge.standing(self.best)[1] * (1 - WORTH)
        others = map(self.found.get, spenders(self._judge.problem, self.best.plan))
        known = [each for each in others if isinstance(each, Prediction)]
        return any(over > 0 and value < best for over, value in map(self._judge.standing, known))

    def _takes_saving(self, known: Prediction) -> bool:
        """Whether a plan that does not fit is better with a change that makes it fit."""
        judge, plan = self._judge, known.plan
        dear = judge.standing(known)[1] * DEAR > judge.standing(self.best)[1]
        for change, other in savers(judge.problem, plan):
            if least_bytes(known.memory, plan, dict(change)) > judge.room_bytes:
                continue
            if dear and plan.training.recompute == NONE and change.get("recompute") == FULL:
                continue
            if self._takes([other]):
                return True
        return False

    def _takes(self, plans: Sequence[Plan]) -> bool:
        """Whether the best of some plans is better than the best so far, which it then is. They are
        simulated `at_once` plans at a time, until one is better."""
        for at in range(0, len(plans), self._at_once):
            new = [plan for plan in plans[at : at + self._at_once] if self._is_open(plan)]
            self.found |= zip(new, self._every(new), strict=True)
            known = [self.found[plan] for plan in new]
            each = [result for result in known if isinstance(result, Prediction)]
            best = min(each, key=self._judge.standing, default=self.best)
            if self._judge.betters(best, self.best):
                self.best = best
                return True
        return False

    def _is_open(self, plan: Plan) -> bool:
        """Whether a plan may still be simulated."""
        if plan in self.found or self.simulated >= self._most:
            return False
        return not self._family or family_of(plan) == self._family

    def _fits(self, plan: Plan) -> bool:
        """Whether a plan was simulated and fits."""
        known = self.found.get(plan)
        return isinstance(known, Prediction) and self._judge.fits(known)

    def _may_save(self, kind: str) -> bool:
        """Whether changes of a kind can save a share worth it of the best step."""
        axes = SAVES.get(kind)
        if axes is None or not self._judge.fits(self.best):
            return True
        waited = sum(
            seconds
            for part, seconds in self.best.breakdown_s.items()
            if not {*part.split("+")}.isdisjoint(axes)
        )
        return waited > WORTH * self.best.step_s
