"""Which ops something depends on: what a step without backward passes runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from workload.op import Op


def needed_for(names: Collection[str], ops: Sequence[Op]) -> list[Op]:
    """The ops on which some buffers depend, on this stage or through messages on another."""
    needed, kept = set(names), []
    for op in reversed(ops):
        if op.is_message or op.kind == "fence" or needed.intersection(op.writes):
            needed.update(op.reads)
            kept.append(op)
    return kept[::-1]
