"""The end of a step: gradients summed over ranks, clipped by their global norm, and AdamW."""

from __future__ import annotations

from workload.lowering.builder import Builder, Parameter


def finish(b: Builder) -> None:
    """Emit everything between the last backward and the next step."""
    b.block = "step"
    _sum_gradients(b)
    b.all_reduce("loss.reduce", "loss", "z", "data")
    _clip(b)
    for owner in dict.fromkeys(p.owner for p in b.parameters.values()):
        _adamw(b, owner, [p for p in b.parameters.values() if p.owner == owner])


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


def _adamw(b: Builder, owner: str, parameters: list[Parameter]) -> None:
    """Emit the update of what an owner has; parts of parameters are gathered once updated."""
    grads = [p.reduced for p in parameters]
    moments = [f"{p.name}.{moment}" for moment in ("m", "v") for p in parameters]
    held = [*moments, *(p.trained for p in parameters)]
    copied = [_copy(b, p) for p in parameters]
    copies = [name for name in copied if name]
    reads = [name for name in copies if b.buffers[name].persistent]
    b.op(f"{owner}.clip", "scale", ["clip.scale", *grads], grads)
    b.op(
        f"{owner}.adamw",
        "adamw",
        [*grads, *held, *reads],
        [*held, *copies],
        parameters=tuple(p.name for p in parameters),
        decays=tuple(p.decays for p in parameters),
        copied=tuple(map(bool, copied)),
    )
    parts = [(p, name) for p, name in zip(parameters, copied, strict=True) if p.apart]
    if parts:
        updated = [name or p.trained for p, name in parts]
        whole = [p.name for p, _ in parts]
        b.collective(f"{owner}.params.gather", "all_gather", updated, whole, *b.sharding.over)


def _copy(b: Builder, parameter: Parameter) -> str:
    """Where AdamW puts what it trained in the compute precision, if it trains in another."""
    if b.dtype != "bf16":
        return ""
    if not parameter.apart:
        return parameter.name
    shape = b.buffers[parameter.trained].shape
    return b.tensor(f"{parameter.name}.updated", shape, role="workspace")
