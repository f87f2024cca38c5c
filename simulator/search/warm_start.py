"""The warm start: a small part of a space with good plans, searched for a first incumbent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.search.problem import SearchProblem
from simulator.search.root_nodes import WORTH, least_bytes
from simulator.search.space import Space, space_of
from simulator.step_memory import room_for_tensors
from topologies.machine import Machine
from workload.errors import PlanCannotRunError
from workload.grid import USUAL
from workload.passes.table import OVERLAPS

ORDERED = {"schedule": "1f1b", "overlap": OVERLAPS, "order": USUAL}
MOST = 2000  # shapes
FRUGAL = {"micro_batch": 1, "zero": 3, "recompute": "full", "overlap": (), "order": USUAL}
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
        *with_experts,
        c["micro_batch"] == c["micro_batch"].min(),
        c["y"] == c["y"].min(),
        (c["zero"] % 2 == 1) | (c["data"] == 1),
        c["recompute"] == c["recompute"].max(),
        c["x"] <= NODE,
    ):
        keep = keep & good if (keep & good).any() else keep
    rows = np.flatnonzero(keep)
    problem = replace(space.problem, fixed=ORDERED | dict(space.problem.fixed))
    return Space(problem, space.only(rows[:: len(rows) // MOST + 1]).columns)


def enough_devices(problem: SearchProblem, machine: Machine) -> int | None:
    """The least power of two times the problem's devices on which some plan may fit."""
    devices = 2 * problem.devices
    while devices <= machine.devices:
        fixed = FRUGAL | dict(problem.fixed)
        try:
            space = space_of(replace(problem, devices=devices, fixed=fixed))
        except PlanCannotRunError:
            space = None
        if space is not None and least_bytes(space) <= room_for_tensors(machine, problem.stack):
            return devices
        devices *= 2
    return None
