"""The warm start: small parts of a space with good plans, searched for first incumbents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.search.problem import SHAPE, SearchProblem
from simulator.search.root_nodes import WORTH, may_fit
from simulator.search.space import Space, space_of, spaces_of
from topologies.machine import Machine
from workload.errors import PlanCannotRunError
from workload.grid import USUAL
from workload.passes.table import OVERLAPS
from workload.plan import Plan
from workload.splits.context import LONG

ORDERED = {"schedule": "1f1b", "overlap": OVERLAPS, "order": USUAL}
MOST = 2000  # shapes
FEW = 10  # plans, which are found in other orders of one shape
FRUGAL = {"mbs": 1, "overlap": (), "order": USUAL}
# Of few wide layers a layer that runs again needs more than what all layers saved.
LEAST = ({"recompute": "full"}, {"recompute": "none"})
NODE = 8  # devices, which most nodes do not exceed


def likely(space: Space) -> Space | None:
    """The shapes of a large space whose fields are as in most good plans; None for a small space,
    which is bounded as fast."""
    if len(space) < WORTH:
        return None
    c = space.columns
    keep = np.ones(len(space), dtype=bool)
    with_experts = (c["z"] == c["z"].min(), c["zero"] <= 1) if space.problem.gpt.experts else ()
    for good in (
        c["cp"] == c["cp"].min(),
        *with_experts,
        c["mbs"] == c["mbs"].min(),
        c["y"] == c["y"].min(),
        (c["zero"] % 2 == 1) | (c["dp"] == 1),
        c["recompute"] == c["recompute"].max(),
        c["tp"] <= NODE,
    ):
        keep = keep & good if (keep & good).any() else keep
    rows = np.flatnonzero(keep)
    problem = replace(space.problem, fixed=ORDERED | dict(space.problem.fixed))
    return Space(problem, space.only(rows[:: len(rows) // MOST + 1]).columns)


def shape_of(plan: Plan, problem: SearchProblem) -> Space | None:
    """The shape of a plan alone, with all its orders; None where a part of a problem lacks it."""
    fields = {key: getattr(plan, key) for key in (*SHAPE, *problem.others)}
    if any(fields[key] != value for key, value in problem.fixed.items() if key in fields):
        return None
    also = {key: words for key, words in problem.also.items() if key not in fields}
    try:
        return space_of(replace(problem, fixed={**problem.fixed, **fields}, also=also))
    except PlanCannotRunError:
        return None


def enough_devices(problem: SearchProblem, machine: Machine) -> int | None:
    """The least power of two times the problem's devices on which some plan may fit."""
    devices = 2 * problem.devices
    while devices <= machine.devices:
        if _may_fit(replace(problem, devices=devices), machine):
            return devices
        devices *= 2
    return None


def split_sequences_may_fit(problem: SearchProblem, machine: Machine) -> bool:
    """Whether plans that split long sequences over context were not searched and may fit."""
    if problem.splits_sequences or "cp" in problem.fixed or problem.gpt.sequence < LONG:
        return False
    return _may_fit(replace(problem, splits_sequences=True), machine)


def _may_fit(problem: SearchProblem, machine: Machine) -> bool:
    """Whether the bound on memory leaves room for some plan."""
    zero = {"zero": max(problem.stack.can["zero"])}
    also = {key: words for key, words in problem.also.items() if key not in (*FRUGAL, "recompute")}
    room = problem.room_bytes(machine)
    for least in LEAST[: 1 if "recompute" in problem.fixed else None]:
        fixed = FRUGAL | least | zero | dict(problem.fixed)
        try:
            spaces = spaces_of(replace(problem, fixed=fixed, also=also))
        except PlanCannotRunError:
            continue
        if any(may_fit(space, room) for space in spaces):
            return True
    return False
