"""A small part of a space with good plans in it: for a first answer, before all is bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.search.problem import SearchProblem
from simulator.search.root_nodes import WORTH, least_bytes
from simulator.search.space import Space, space_of
from topologies.machine import Machine
from workload.errors import PlanCannotRunError
from workload.grid import USUAL
from workload.passes.table import OVERLAPS

ORDERED = {"schedule": "1f1b", "overlap": OVERLAPS, "order": USUAL}
MOST = 2000  # shapes
FRUGAL = {"micro_batch": 1, "zero": 3, "recompute": "full", "overlap": (), "order": USUAL}
NODE = 8  # devices, which most nodes do not exceed


def likely(space: Space) -> Space | None:
    """The shapes of a large space that have fields as most good plans have them; None of a small
    one, which is bounded as soon."""
    if len(space) < WORTH:
        return None
    c = space.columns
    keep = np.ones(len(space), dtype=bool)
    for good in (
        c["micro_batch"] == c["micro_batch"].min(),
        c["y"] == c["y"].min(),
        (c["zero"] % 2 == 1) | (c["data"] == 1),
        c["recompute"] == c["recompute"].max(),
        c["x"] <= NODE,
    ):
        keep = keep & good if (keep & good).any() else keep
    rows = np.flatnonzero(keep)
    question = replace(space.question, fixed=ORDERED | dict(space.question.fixed))
    return Space(question, space.only(rows[:: len(rows) // MOST + 1]).columns)


def enough_devices(question: SearchProblem, machine: Machine) -> int | None:
    """Of twice as many devices, and twice as many again, the first on which some plan may fit."""
    devices = 2 * question.devices
    while devices <= machine.devices:
        fixed = FRUGAL | dict(question.fixed)
        try:
            space = space_of(replace(question, devices=devices, fixed=fixed))
        except PlanCannotRunError:
            space = None
        if space is not None and least_bytes(space) <= machine.device.usable_bytes:
            return devices
        devices *= 2
    return None
