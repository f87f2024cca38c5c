"""Memory: live ranges of a program's buffers, and the peak they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workload.dataflow import Waits, retired_at
from workload.op import HOST, ROLES, Buffer, Op


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes in use while an op runs, by role, and in all on the device."""

    op: str
    total_bytes: int
    parts: dict[str, int]


def releases(
    ops: Sequence[Op], wait_lists: Sequence[Waits], buffers: Mapping[str, Buffer]
) -> list[list[str]]:
    """For each op the transient buffers that nobody needs once it is through.

    A buffer dies when the last op that touches it is known to be done (`retired_at`), so one that
    an asynchronous collective still works on is held until that collective is awaited.
    """
    retired = retired_at(ops, wait_lists)
    last: dict[str, int] = {}
    for index, op in enumerate(ops):
        for name in (*op.reads, *op.writes):
            last[name] = max(last.get(name, 0), retired[index])
    freed: list[list[str]] = [[] for _ in ops]
    for name, index in last.items():
        if not buffers[name].persistent:
            freed[index].append(name)
    return freed


def memory_curve(
    ops: Sequence[Op], freed: Sequence[Sequence[str]], buffers: Mapping[str, Buffer]
) -> list[MemoryUse]:
    """Memory in use during each op, in issue order; persistent buffers count throughout."""
    parts = dict.fromkeys(ROLES, 0)
    for buffer in buffers.values():
        if buffer.persistent:
            parts[buffer.role] += buffer.nbytes
    live: set[str] = set()
    curve = []
    for op, gone in zip(ops, freed, strict=True):
        for name in op.writes:
            if name not in live and not buffers[name].persistent:
                live.add(name)
                parts[buffers[name].role] += buffers[name].nbytes
        curve.append(MemoryUse(op.name, sum(parts.values()) - parts[HOST], dict(parts)))
        for name in gone:
            live.discard(name)
            parts[buffers[name].role] -= buffers[name].nbytes
    return curve
