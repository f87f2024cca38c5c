"""Other ways to rank plans, beside the search: all of them simulated, or AxoNN's model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product

from simulator.predict import Prediction, predict
from simulator.ranks.fabric import MachineFabric
from simulator.search.axonn_model import communication_s, rates_of
from simulator.search.objective import Objective
from simulator.search.orders import overlaps
from simulator.search.problem import SearchProblem, schedules
from simulator.search.progress import Progress
from simulator.search.space import Order, Space, space_of, spaces_of
from topologies.errors import MachineError
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from workload.errors import PlanCannotRunError, PlanError
from workload.grid import Grid
from workload.plan import Plan, text_of

# What AxoNN's model does not know: left out.
UNKNOWN = {"cp": 1, "pp": 1, "zero": 0, "sp": False}


def every_plan(space: Space) -> Iterator[Plan]:
    """All plans of a space."""
    for at in range(len(space)):
        orders = schedules(
            space.problem, int(space.columns["pp"][at]), int(space.micro_batches[at])
        )
        switches = overlaps(space.problem, space.shape(at))
        others = switches, space.rank_orders(at), space.dispatchers(at)
        for order, overlap, ranks, dispatcher in product(orders, *others):
            yield space.plan(at, Order(*order, overlap, ranks, dispatcher))


def exhaustive(
    problem: SearchProblem,
    machine: Machine,
    *,
    placement: Placement | None = None,
    top: int = 1,
    objective: str = "time",
) -> Iterator[Progress]:
    """Simulate every plan: the reference of a search."""
    problem = problem.on(machine)
    spaces, stack = spaces_of(problem), problem.stack
    goal = Objective(objective, machine, problem.devices)
    found: list[Prediction] = []
    plans = sum(space.plans for space in spaces)
    state = Progress(plans, 0, 0, 0.0, math.inf, (), False)
    every, room = chain.from_iterable(map(every_plan, spaces)), problem.room_bytes(machine)
    for number, plan in enumerate(every, start=1):
        gpt = stack.model(problem.gpt, plan.tp)
        try:
            prediction = predict(gpt, plan, machine, placement=placement, stack=stack)
        except (MachineError, PlanCannotRunError) as error:
            fitting, refused = state.fitting + 1, state.unpredicted + 1
            reason = state.reason or str(error)
            state = replace(state, fitting=fitting, unpredicted=refused, reason=reason)
        else:
            is_enough = prediction.memory.peak_bytes <= room
            if is_enough:
                found = sorted([*found, prediction], key=goal.place)[:top]
            fitting = state.fitting + is_enough
            state = replace(state, fitting=fitting, simulated=state.simulated + 1)
        values = [goal.shown(goal.of(each)) for each in found] or [math.inf]
        state = replace(state, best=values[0], found=tuple(found))
        if number < plans:
            yield state
    yield replace(state, bound=values[0], is_optimal=True)


@record
class Ranked:
    """A plan as AxoNN's model ranks it, and as it is simulated."""

    communication_s: float
    prediction: Prediction


def by_axonn(
    problem: SearchProblem, machine: Machine, *, placement: Placement | None = None, top: int = 20
) -> list[Ranked]:
    """The `top` grids by AxoNN's model that fit, each simulated under the problem's stack with all
    overlaps, unless the problem fixes others.

    The model knows the four axes alone, so pipelines and zero are left out, and a rank runs the
    largest micro-batch with which it fits.
    """
    for key, value in UNKNOWN.items():
        if (wanted := problem.fixed.get(key, value)) != value:
            given = f"{key}={text_of(wanted)}"
            raise PlanError(f"AxoNN's model knows x, y, z and data alone, so not {given}")
    own = {**UNKNOWN, "recompute": "full", **problem.fixed}
    space = space_of(SearchProblem(problem.gpt, problem.devices, problem.batch, own))
    fabric = MachineFabric(machine, problem.devices, placement)
    rates: dict[Grid, dict[str, float]] = {}
    timed: list[tuple[float, int, Plan]] = []
    for plan in _plans(space):
        rates.setdefault(plan.grid, rates_of(fabric, plan.grid))
        timed.append((communication_s(problem.gpt, plan, rates[plan.grid]), -plan.mbs, plan))
    ranked: list[Ranked] = []
    seen: set[Grid] = set()
    for seconds, _, plan in sorted(timed, key=lambda item: item[:2]):
        if len(ranked) == top:
            break
        if plan.grid in seen:
            continue
        gpt, stack = problem.stack.model(problem.gpt, plan.tp), problem.stack
        prediction = predict(gpt, plan, machine, placement=placement, stack=stack)
        if prediction.memory.peak_bytes <= problem.room_bytes(machine):
            seen.add(plan.grid)
            ranked.append(Ranked(seconds, prediction))
    if not ranked:
        raise PlanCannotRunError(
            f"no grid of AxoNN's model fits into {problem.devices} devices of {machine.full_name}"
        )
    return ranked


def _plans(space: Space) -> Iterator[Plan]:
    for at in range(len(space)):
        overlap = overlaps(space.problem, space.shape(at))[0]
        yield space.plan(at, Order("1f1b", 1, overlap, space.rank_orders(at)[0]))


def kendall_tau(ranked: Sequence[Ranked]) -> float:
    """How far two rankings agree: 1 wholly, 0 not at all, -1 reversed (Kendall's tau-a)."""
    pairs = [(a, b) for at, a in enumerate(ranked) for b in ranked[at + 1 :]]
    if not pairs:
        return 1.0
    agree = sum(
        _sign(b.communication_s - a.communication_s)
        * _sign(b.prediction.step_s - a.prediction.step_s)
        for a, b in pairs
    )
    return agree / len(pairs)


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
