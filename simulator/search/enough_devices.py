"""On how many devices some plan of a problem may fit, by bounds of memory alone."""

from __future__ import annotations

from dataclasses import replace

from simulator.search.problem import SearchProblem, unproved
from simulator.search.root_nodes import may_fit
from simulator.search.space import spaces_of
from topologies.machine import Machine
from workload.errors import PlanCannotRunError
from workload.grid import USUAL

FRUGAL = {"mbs": 1, "overlap": (), "order": USUAL}
# Of few wide layers a layer that runs again needs more than what all layers saved.
LEAST = ({"recompute": "full"}, {"recompute": "none"})


def enough_devices(problem: SearchProblem, machine: Machine) -> int | None:
    """The least power of two times the problem's devices on which some plan of the core space may
    fit; None where there is none, or where no bounds are known."""
    if unproved(problem, machine):
        return None
    devices = 2 * problem.devices
    while devices <= machine.devices:
        if _may_fit(replace(problem, devices=devices), machine):
            return devices
        devices *= 2
    return None


def _may_fit(problem: SearchProblem, machine: Machine) -> bool:
    """Whether the bound on memory leaves room for some plan."""
    zero = {"zero": max(problem.stack.can["zero"])}
    room = problem.room_bytes(machine)
    for least in LEAST[: 1 if "recompute" in problem.fixed else None]:
        fixed = FRUGAL | least | zero | dict(problem.fixed)
        try:
            spaces = spaces_of(replace(problem, fixed=fixed))
        except PlanCannotRunError:
            continue
        if any(may_fit(space, room) for space in spaces):
            return True
    return False
