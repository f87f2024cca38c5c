"""A small part of a space with good plans in it: for a first answer, before all is bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.search.families import WORTH
from simulator.search.space import Space
from workload.grid import USUAL
from workload.plan import OVERLAPS

ORDERED = {"schedule": "1f1b", "overlap": OVERLAPS, "order": USUAL}
MOST = 2000  # shapes
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
