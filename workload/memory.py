"""Memory in use at an op, as a report tells it."""

from __future__ import annotations

import numpy as np

from topologies.records import record
from workload.op import HOST, ROLES
from workload.sizes.arrays import Bytes


@record
class MemoryUse:
    """Bytes in use while an op runs, by role, and in all on the device."""

    op: str
    total_bytes: int
    parts: dict[str, int]


def on_device(levels: Bytes, axis: int) -> Bytes:
    """Bytes in use on the device, of levels with the roles along an axis."""
    return np.asarray(levels.sum(axis=axis) - levels.take(ROLES.index(HOST), axis=axis))


def use_of(level: Bytes, where: str) -> MemoryUse:
    """Bytes by role, (roles,), as a report of memory."""
    parts = dict(zip(ROLES, level.tolist(), strict=True))
    return MemoryUse(where, sum(parts.values()) - parts[HOST], parts)
