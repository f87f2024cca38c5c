"""Memory in use at an op, as a report tells it."""

from __future__ import annotations

from dataclasses import dataclass

from workload.op import HOST, ROLES
from workload.sizes.arrays import Bytes


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes in use while an op runs, by role, and in all on the device."""

    op: str
    total_bytes: int
    parts: dict[str, int]


def use_of(level: Bytes, where: str) -> MemoryUse:
    """Bytes by role, (roles,), as a report of memory."""
    parts = dict(zip(ROLES, level.tolist(), strict=True))
    return MemoryUse(where, sum(parts.values()) - parts[HOST], parts)
