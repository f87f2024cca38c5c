"""Behind the update: the scales of a recipe for the next step, and the casts of weights."""

from __future__ import annotations

from workload.grid import OPPOSITE
from workload.lowering.recipes.copies import SLOTS, Copies, Tensor
from workload.op import STEP, WEIGHT_CAST, Op, Part
from workload.recipes.table import DELAYED, LARGEST


def behind_update(copies: Copies) -> list[Op]:
    """Scales for the next step, and the casts of weights."""
    b, b.ops, b.block = copies.b, [], STEP
    if copies.recipe.scaling == DELAYED:
        _emit_scales(copies)
    held = [(name, copies.tensors[name]) for name in b.parameters if name in copies.tensors]
    if copies.recipe.wants_largest:
        _emit_largest(copies, held)
    for name, tensor in held:
        part = b.parameters[name].owner
        reads, writes = copies.scales_of(tensor, part)
        largest = [f"{name}.amax"] if copies.recipe.wants_largest else []
        values = [each for block in tensor.blocks for each in copies.made[name, block]]
        about = {**copies.how_of(tensor, part), "purpose": WEIGHT_CAST, "part": part}
        reads, writes = [name, *largest, *reads], [*values, *writes]
        nbytes = sum(map(b.nbytes, dict.fromkeys((*reads, *writes))))
        b.op(f"{_own(name, part)}.quantise", "quantise", reads, writes, nbytes=nbytes, **about)
    return b.ops


def _emit_largest(copies: Copies, held: list[tuple[str, Tensor]]) -> None:
    b, groups = copies.b, dict[tuple[str, ...], list[str]]()
    for name, tensor in held:
        part, largest = b.parameters[name].owner, f"{name}.amax"
        label = f"{_own(name, part)}.amax"
        how = {**copies.how_of_largest(tensor), "part": part, "purpose": WEIGHT_CAST}
        b.op(label, "amax", [name], [largest], **how)
        axes = *copies.axes_of(name, tensor), *b.layouts[name].flat
        apart = tuple(axis for axis in dict.fromkeys(axes) if b.grid.size(axis) > 1)
        groups.setdefault(apart, []).append(largest)
    for axes, names in groups.items():
        label = "amaxes.reduce" if len(groups) == 1 else f"amaxes.reduce.{'.'.join(axes)}"
        if axes:
            operands = label, "all_reduce", names, names
            b.collective(*operands, *axes, purpose=WEIGHT_CAST, reduction="max")


def _emit_scales(copies: Copies) -> None:
    """A tensor's scales are those of its values on all ranks, in both copies of the model."""
    b, every = copies.b, [f"{part}.amaxes" for part in copies.numbers]
    axes = [axis for axis in ("tp", "y", "z", "cp", "dp") if b.grid.size(axis) > 1]
    if axes and every:
        b.collective("amaxes.reduce", "all_reduce", every, every, *axes, reduction="max")
    if b.copies > 1 and every:
        copied = "amaxes.copies.reduce", "all_reduce", every, every
        b.collective(*copied, OPPOSITE, reduction="max")
    for part in copies.numbers:
        largest = tuple(LARGEST[copies.recipe.format_of(kind)] for kind in SLOTS)
        own = [f"{part}.{name}" for name in ("amaxes", "amax_history", "scales")]
        b.op("scales.update", "update_scales", own, own, largest=largest, part=part)


def _own(name: str, part: Part) -> str:
    """A parameter's name within its part of the model."""
    return name.removeprefix(f"{part}.")
