"""The end of a step: gradients summed over ranks, their global norm, and the update."""

from __future__ import annotations

from workload.lowering.builder import Builder
from workload.lowering.update import update


def finish(b: Builder) -> None:
    """Emit everything between the last backward and the next step."""
    b.block = "step"
    _sum_gradients(b)
    b.all_reduce("loss.reduce", "loss", "z", "data")
    _clip(b)
    update(b)


def _sum_gradients(b: Builder) -> None:
    """What is left to sum: over S (zero=1) and over the copies; small ones over z and data."""
    sharded = [p for p in b.parameters.values() if p.sharded]
    grads, reduced = [f"{p.name}.grad" for p in sharded], [p.reduced for p in sharded]
    if reduced != grads:
        for p in sharded:
            shape, dtype = b.buffers[p.trained].shape, b.buffers[f"{p.name}.grad"].dtype
            b.tensor(p.reduced, shape, dtype, role="gradients")
        b.collective("grads.scatter", "reduce_scatter", grads, reduced, *b.sharding.over)
    if b.grid.size(*b.sharding.copies) > 1:
        b.collective("grads.reduce", "all_reduce", reduced, reduced, *b.sharding.copies)
    small = [f"{p.name}.grad" for p in b.parameters.values() if not p.sharded]
    if b.grid.size("z", "data") > 1:
        b.collective("small.reduce", "all_reduce", small, small, "z", "data")


def _clip(b: Builder) -> None:
    """The norm counts each gradient once: copies share its square among them."""
    parameters = list(b.parameters.values())
    norm = b.tensor("norm.square", (1,), b.wide, role="workspace")
    shares = tuple(1 / p.copies for p in parameters)
    b.op("norm.squares", "square_sum", [p.reduced for p in parameters], [norm], shares=shares)
    b.all_reduce("norm.reduce", norm, "x", "y", "z", *b.sharding.over)
    scale = b.tensor("clip.scale", (1,), b.wide, role="workspace")
    b.op("clip", "clip_scale", [norm], [scale])
