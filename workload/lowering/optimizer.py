"""The end of a step: gradients summed over ranks, clipped by their global norm, and AdamW."""

from __future__ import annotations

from workload.lowering import rows
from workload.lowering.builder import Builder, Parameter


def finish(b: Builder) -> None:
    """Emit everything between the last backward and the next step."""
    b.block = "step"
    small = [f"{p.name}.grad" for p in b.parameters.values() if not p.sharded]
    sharded = [f"{p.name}.grad" for p in b.parameters.values() if p.sharded]
    if b.grid.data > 1:
        b.collective("grads.reduce", "all_reduce", sharded, sharded, "data")
    partial = [name for name in small if rows.parts(b) > 1 and not _split_over_x(b, name)]
    small = [name for name in small if name not in partial]
    if partial:
        b.collective("rows.reduce", "all_reduce", partial, partial, "x", "z", "data")
    if small and b.grid.size("z", "data") > 1:
        b.collective("small.reduce", "all_reduce", small, small, "z", "data")
    if b.gpt.tied and b.grid.pipe > 1 and b.stage in (0, b.grid.pipe - 1):
        b.all_reduce("tied.reduce", "embed.w.grad", "ends")
    if b.stage < b.grid.pipe - 1:
        b.op("loss.zero", "zero", [], ["loss"])
    b.all_reduce("loss.reduce", "loss", "z", "data", "pipe")
    _clip(b)
    for owner in dict.fromkeys(p.owner for p in b.parameters.values()):
        _adamw(b, owner, [p for p in b.parameters.values() if p.owner == owner])


def _split_over_x(b: Builder, grad: str) -> bool:
    """Whether ranks of x hold different parts; otherwise each has summed but its own rows."""
    return any("x" in axes for axes in b.layouts[grad.removesuffix(".grad")].split)


def _clip(b: Builder) -> None:
    """The norm counts each gradient once: copies share its square among them."""
    parameters = list(b.parameters.values())
    grads = [f"{p.name}.grad" for p in parameters]
    norm = b.tensor("norm.square", (1,), b.wide, role="workspace")
    shares = tuple(1 / p.copies for p in parameters)
    b.op("norm.squares", "square_sum", grads, [norm], shares=shares)
    b.all_reduce("norm.reduce", norm, "x", "y", "z", "pipe")
    scale = b.tensor("clip.scale", (1,), b.wide, role="workspace")
    b.op("clip", "clip_scale", [norm], [scale])


def _adamw(b: Builder, owner: str, parameters: list[Parameter]) -> None:
    states = ["m", "v"] + (["master"] if b.dtype == "bf16" else [])
    grads = [f"{p.name}.grad" for p in parameters]
    held = [f"{p.name}.{state}" for state in states for p in parameters]
    names = [p.name for p in parameters]
    b.op(f"{owner}.clip", "scale", ["clip.scale", *grads], grads)
    b.op(
        f"{owner}.adamw",
        "adamw",
        [*grads, *held, *names],
        [*held, *names],
        parameters=tuple(names),
        decays=tuple(p.decays for p in parameters),
    )
