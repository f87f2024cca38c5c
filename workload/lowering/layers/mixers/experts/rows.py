"""Rows of the ranks that hold parts of the same experts: gathered in front of these, summed behind.

Each of these ranks has an expert's matrices in part, and needs the rows of all. With sequence
parallelism ranks of x have rows of their own, without it they have the same; ranks of context and
data always have their own.
"""

from __future__ import annotations

from workload.grid import Axes
from workload.lowering.builder import Builder


def gathered_over(b: Builder) -> Axes:
    """The axes whose ranks hold parts of the same experts and have rows of their own."""
    alike = () if b.plan.sp else b.shards_of("rows")
    axes = tuple(axis for axis in b.expert_tensor_axes if axis not in alike)
    return axes if b.grid.size(*axes) > 1 else ()


def gather(b: Builder, name: str, part: str, purpose: str = "") -> str:
    """Emit the all-gather of the rows of all these ranks; returns the whole tensor's name."""
    axes, own = gathered_over(b), b.buffers[part]
    if not axes:
        return part
    first, *rest = own.shape
    shape = (first * b.grid.size(*axes), *rest)
    whole = b.tensor(f"{name}.o", shape, own.dtype, role="gathered")
    b.collective(f"{name}.gather", "all_gather", [part], [whole], *axes, purpose=purpose)
    return whole


def reduce(b: Builder, name: str, whole: str, *axes: str, purpose: str = "") -> str:
    """Emit the sum over the axes; returns what a rank keeps of it: where they are those whose rows
    were gathered its own rows, by a reduce-scatter."""
    if not axes or axes != gathered_over(b):
        b.all_reduce(name, whole, *axes, purpose=purpose)
        return whole
    rows, *width = b.buffers[whole].shape
    part = b.tensor(f"{name}.o", (rows // b.grid.size(*axes), *width), b.buffers[whole].dtype)
    b.collective(name, "reduce_scatter", [whole], [part], *axes, purpose=purpose)
    return part
