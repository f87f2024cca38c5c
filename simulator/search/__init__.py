"""The search for the best plan: proved over the core space, good over all that is predicted.

In this order: usual plans are simulated, one or more of each family of plans, so that there is an
answer within seconds. Lower bounds of all plans of the core space are found
(`branch_and_bound.py`). From the best known plans of each family one walks to better neighbours
(`around.py`). Branch and bound then proves that no plan of the core space is better than the best
one, or finds it; and from the best one of all one walks once more. Where no bounds are known
(`problem.unproved`), walks are all there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from simulator.limits import check_measured
from simulator.pool import LostError, Pool
from simulator.predict import Prediction, predict
from simulator.search.around import Judge, Result, Standing, Walk
from simulator.search.branch_and_bound import BranchAndBound
from simulator.search.core import core_spaces, is_in_core, tree_of
from simulator.search.families import family_of, name_of
from simulator.search.objective import Objective
from simulator.search.problem import SearchProblem, unproved
from simulator.search.progress import Progress, Tally
from simulator.search.root_nodes import NEVER
from simulator.search.space import Space
from simulator.search.usual import usual_families, usual_plans, why_none
from simulator.stacks.searched import fastest_kernels
from simulator.stacks.stack import EXECUTOR, Stack
from topologies.errors import MachineError, SimgptError
from topologies.exit_status import ExitStatus
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.session import gc_paused, steps_in_session
from workload.errors import PlanCannotRunError
from workload.gpt import GPT
from workload.plan import Plan
from workload.recomputation.parts import NONE

__all__ = ["Progress", "SearchError", "SearchProblem", "best_plan", "checked", "search"]

FIRST = 4  # simulations of a family's walk, beside its usual plans
LAST = 100  # of the walk from the best plan
AT_ONCE = 8  # of these, however many processes there are
STARTS = 4  # families from whose best plans one walks where nothing is proved
LONGEST_S = 600.0  # for which no process answers, after which the search cannot go on


class SearchError(SimgptError):
    """A search that could not go on."""

    exit_code = ExitStatus.MACHINE_FAILED


@steps_in_session
def search(
    problem: SearchProblem,
    machine: Machine,
    *,
    placement: Placement | None = None,
    top: int = 1,
    workers: int = 1,
    capacity_bytes: int | None = None,
    objective: str = "time",
) -> Iterator[Progress]:
    """Search for the best plan that fits into a device, with the problem's probability, state by
    state; the last state is the answer, with the `top` best plans of all that were simulated.
    `objective` is what they are best in.

    With several `workers` as many processes bound and simulate. `capacity_bytes` stands for the
    largest peak that fits if given. A PlanCannotRunError says why there is no legal plan.
    """
    kernels = fastest_kernels(problem.stack, problem.gpt, problem.fixed, machine)
    check_measured(machine, kernels)
    judge = judge_of(problem.on(machine), machine, placement, capacity_bytes, objective)
    # Each process imports this first, while this one simulates the first plan.
    with Pool(workers, partial(import_module, __name__), LONGEST_S) as pool, gc_paused():
        try:
            yield from Search(judge, machine, placement, pool if workers > 1 else None, top).run()
        except LostError as lost:
            why = f"process {lost.pid} of the search {lost.what}"
            raise SearchError(f"{why}; try --workers 1") from None


class Search:
    """A search under way: what was simulated, and how far the proof is."""

    def __init__(
        self,
        judge: Judge,
        machine: Machine,
        placement: Placement | None,
        pool: Pool | None,
        top: int,
    ) -> None:
        self._judge, self._machine, self._placement = judge, machine, placement
        self._pool, self._top = pool, top
        self._unproved = unproved(judge.problem, machine)
        self._found: dict[Plan, Prediction] = {}
        self._best_of: dict[str, Prediction] = {}  # families
        self._around, self._tally = 0, Tally()
        self._tree: BranchAndBound | None = None
        self._is_over = False
        self._reason = ""  # why some plan cannot be predicted

    def run(self) -> Iterator[Progress]:
        """Search step by step; the last state is the answer."""
        problem = self._judge.problem
        spaces = [] if self._unproved else core_spaces(problem, self._machine)
        usual = usual_plans(problem, self._machine)
        if self._unproved and not usual:
            raise why_none(problem)
        yield self._state()
        yield from self._tried(usual)
        if self._unproved:
            yield from self._walked_from_the_best()
        else:
            yield from self._proved(spaces)
        self._is_over = True
        if self._unproved and self._reason and not self._best_of:
            raise MachineError(self._reason)
        yield self._state()

    def _tried(self, usual: Mapping[str, list[Plan]]) -> Iterator[Progress]:
        """Simulate the first usual plan of each family, the very first one while other processes
        start, for an answer soon; then the others, and walk from the best of each."""
        first = [plans[0] for plans in usual.values()]
        known: dict[Plan, list[Plan | Prediction]] = {}
        for plan, result in self._soon(first):
            self._around += 1
            known[plan] = [result] if isinstance(result, Prediction) else []
            if isinstance(result, Prediction):
                self._take(result)
            else:
                self._reason = self._reason or str(result)
            yield self._state()
        tasks = [([*known[own[0]], *own[1:]], name, FIRST) for name, own in usual.items()]
        yield from self._walked(tasks)

    def _soon(self, plans: Sequence[Plan]) -> Iterator[tuple[Plan, Result]]:
        """Simulations of some plans, as they are through."""
        if self._pool is not None:
            self._pool.start()
        simulate = self._judge.simulate
        yield from ((plan, simulate(plan)) for plan in plans[: 1 if self._pool else None])
        if self._pool is not None:
            for at, result in self._pool.map_as_done(simulate, plans[1:]):
                yield plans[1 + at], result

    def _proved(self, spaces: list[Space]) -> Iterator[Progress]:
        """Bound the core space, walk from the best plans of each family, and prove."""
        place = self._machine, self._placement
        self._tree = tree = tree_of(self._judge, spaces, *place, self._pool)
        for _ in tree.bound(self._best):
            yield self._state()
        starts = self._starts(tree)
        tasks = [(plans, name, FIRST) for name, plans in starts.items()]
        yield from self._walked(tasks, in_order=True)
        walked = self._best
        # What recomputes has neighbours that do less of it, of which no bounds are known.
        if walked is not None and walked.plan.training.recompute != NONE:
            self._walk_on(walked)
            walked = self._best
            yield self._state()
        for _ in tree.refine(self._best):
            yield self._state()
        if tree.best is not None:
            self._take(tree.best)
        yield self._state()
        if self._best is not None and (
            self._best != walked or walked.plan.training.recompute == NONE
        ):
            self._walk_on(self._best, skip=partial(is_in_core, self._judge.problem))

    def _walked_from_the_best(self) -> Iterator[Progress]:
        """Walk on from the best plans, those of usual families first, as nothing else is known."""
        usual = usual_families(self._judge.problem)

        def place(name: str) -> tuple[bool, Standing]:
            return name not in usual, self._judge.standing(self._best_of[name])

        starts = sorted(self._best_of, key=place)[:STARTS]
        yield from self._walked([([self._best_of[name]], "", LAST) for name in starts])

    def _starts(self, tree: BranchAndBound) -> dict[str, list[Plan | Prediction]]:
        """The plans of each family from which one walks: those with the lowest bounds, and the best
        one that was simulated."""
        found: dict[str, list[Plan | Prediction]] = {}
        for code, candidates in sorted(tree.candidates.items()):
            found[name_of(code)] = [plan for _, plan in candidates]
        for name, best in self._best_of.items():
            found.setdefault(name, []).append(best)
        return found

    def _walk_on(self, start: Prediction, **how: Any) -> None:
        """Walk from a plan, with all processes at its neighbours."""
        walk = Walk(self._judge, start, most=LAST, every=self._every, at_once=AT_ONCE, **how)
        walk.run()
        self._around += walk.simulated
        for prediction in walk.best_ones:
            self._take(prediction)

    def _every(self, plans: Sequence[Plan]) -> Iterable[Result]:
        """Simulate some plans, with all processes."""
        return (self._pool.map if self._pool else map)(self._judge.simulate, plans)

    def _walked(
        self,
        tasks: Iterable[tuple[Sequence[Plan | Prediction], str, int]],
        *,
        in_order: bool = False,
    ) -> Iterator[Progress]:
        """Walks from the best of some plans each, within a family or without, of so many
        simulations at most; of plans `in_order` none behind the first that fits."""
        walk = partial(walked, self._judge, in_order)
        each = [(tuple(plans), name, most) for plans, name, most in tasks]
        for found, count, why in self._pool.map(walk, each) if self._pool else map(walk, each):
            self._around += count
            self._reason = self._reason or why
            for prediction in found:
                self._take(prediction)
            yield self._state()

    def _take(self, prediction: Prediction) -> None:
        name, judge = family_of(prediction.plan), self._judge
        other = self._best_of.get(name)
        if other is None or self._standing(prediction) < self._standing(other):
            self._best_of[name] = prediction
        if judge.standing(prediction)[0]:
            self._tally.needs(prediction.memory.peak_bytes)
        else:
            self._found.setdefault(prediction.plan, prediction)

    def _standing(self, prediction: Prediction) -> tuple[Standing, tuple[int, int, str]]:
        return self._judge.standing(prediction), self._judge.place(prediction)

    @property
    def _best(self) -> Prediction | None:
        return min(self._found.values(), key=self._judge.place, default=None)

    def _state(self) -> Progress:
        """How far the search is."""
        tree, judge = self._tree, self._judge
        tally = self._tally + (Tally() if tree is None else tree.tally)
        every = dict(self._found)
        if tree is not None and tree.best is not None:  # which another one may yet undercut
            every[tree.best.plan] = tree.best
        found = sorted(every.values(), key=judge.place)[: self._top]
        best = judge.objective.of(found[0]) if found else NEVER
        lowest = tree.lowest if tree is not None and tree.bounded == 1 else 0
        show = judge.objective.shown
        families = {
            name: each for name, each in self._best_of.items() if not judge.standing(each)[0]
        }
        return Progress(
            0 if tree is None else tree.plans,
            tally.fitting,
            self._around + (0 if tree is None else tree.simulated),
            show(min(lowest, best)),
            show(best) if found else math.inf,
            tuple(found),
            self._is_over and tree is not None,
            tally.unpredicted,
            tally.reason,
            1.0 if tree is None else tree.bounded,
            0 if tally.least_bytes == NEVER else tally.least_bytes,
            self._around,
            self._unproved,
            dict(sorted(families.items(), key=lambda item: judge.place(item[1]))),
        )


def walked(
    judge: Judge, in_order: bool, task: tuple[Sequence[Plan | Prediction], str, int]
) -> tuple[list[Prediction], int, str]:
    """The best plans on a walk from the best of some plans, how many were simulated, and why one
    could not be; of plans `in_order` none behind the first that fits."""
    plans, family, most = task
    begun = [plan for plan in plans if isinstance(plan, Prediction)]
    count, why = 0, ""
    for plan in plans:
        if isinstance(plan, Prediction):
            continue
        count, result = count + 1, judge.simulate(plan)
        if isinstance(result, MachineError):
            why = why or str(result)
            continue
        begun.append(result)
        if in_order and judge.fits(result):
            break
    if not begun:
        return [], count, why
    walk = Walk(judge, min(begun, key=judge.standing), family=family, most=most)
    walk.run()
    return [*begun, *walk.best_ones], count + walk.simulated, why


def judge_of(
    problem: SearchProblem,
    machine: Machine,
    placement: Placement | None = None,
    capacity_bytes: int | None = None,
    objective: str = "time",
) -> Judge:
    """How the plans of a problem are judged on a machine (see `search`)."""
    room = problem.room_bytes(machine) if capacity_bytes is None else capacity_bytes
    goal = Objective(objective, machine, problem.devices)
    return Judge(problem, partial(_simulated, problem, machine, placement), goal, room)


def best_plan(
    gpt: GPT,
    machine: Machine,
    devices: int,
    batch: int,
    *,
    fixed: Mapping[str, Any] | None = None,
    placement: Placement | None = None,
    stack: Stack = EXECUTOR,
) -> Prediction:
    """The fastest plan of all that fit, as predicted; a PlanCannotRunError where none fits."""
    problem = SearchProblem(gpt, devices, batch, fixed or {}, stack=stack)
    *_, answer = search(problem, machine, placement=placement)
    checked(answer)
    if not answer.found:
        least = f"{answer.least_bytes / 2**30:,.2f} GiB"
        raise PlanCannotRunError(
            f"none of {answer.considered:,} plans of {gpt.name} fits into the memory of {devices} "
            f"devices of {machine.full_name}; each needs {least} or more"
        )
    return answer.found[0]


def checked(state: Progress) -> Progress:
    """Return the state of a search; a MachineError where no plan that may fit can be predicted."""
    if state.is_optimal and state.unpredicted and state.unpredicted == state.fitting:
        raise MachineError(
            f"none of {state.fitting:,} plans that may fit can be predicted: {state.reason}"
        )
    return state


def _simulated(
    problem: SearchProblem, machine: Machine, placement: Placement | None, plan: Plan
) -> Prediction | MachineError:
    """The plan's prediction, or why there is none: of what the machine is, of what the stack does
    not run together, or of how many slots a simulation may have."""
    gpt, stack = problem.stack.model(problem.gpt, plan.tp), problem.stack
    try:
        return predict(gpt, plan, machine, placement=placement, stack=stack)
    except (MachineError, PlanCannotRunError) as error:
        return MachineError(str(error))
