"""Sequence parallelism: norms, residual additions and the stream on a part of the rows each.

The stream's rows are split over x; they are gathered in front of a linear whose columns x splits,
and behind one whose rows x splits the sum is scattered instead of copied. A gathered tensor is not
kept: the backward pass gathers it again. With one rank on x, or without sequence parallelism,
nothing is emitted but the all-reduces.
Source: Korthikanti et al. (2205.05198), section 4.2.2.
"""

from __future__ import annotations

from workload.lowering.builder import Builder


def parts(b: Builder) -> int:
    """Over how many ranks the rows of the residual stream are split."""
    return b.grid.parts_of("rows") if b.plan.sp else 1


def gather(b: Builder, name: str, part: str, purpose: str = "") -> str:
    """Emit the all-gather of all rows over x; returns the whole tensor's name."""
    if parts(b) == 1:
        return part
    own = b.buffers[part]
    whole = b.tensor(f"{name}.o", (b.rows, *own.shape[1:]), own.dtype, role="gathered")
    b.collective(
        f"{name}.gather", "all_gather", [part], [whole], *b.shards_of("rows"), purpose=purpose
    )
    return whole


def reduce(b: Builder, name: str, whole: str, *axes: str, purpose: str = "") -> str:
    """Emit the sum over the axes of all rows; returns what a rank keeps of it.

    Over x and with the stream's rows split, that is its part alone, by a reduce-scatter.
    """
    over = b.shards_of("rows")
    if not set(over) & set(axes) or parts(b) == 1:
        b.all_reduce(name, whole, *axes, purpose=purpose)
        return whole
    rows, *width = b.buffers[whole].shape
    part = b.tensor(f"{name}.o", (rows // parts(b), *width), b.buffers[whole].dtype)
    b.collective(name, "reduce_scatter", [whole], [part], *over, purpose=purpose)
    return part
