"""The copies that a recipe makes of what linears multiply: which there are, of which sizes, with
which scales; shared by the casts within a step and those behind its update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from workload.lowering.builder import Builder
from workload.lowering.layers.mixers.experts import rows
from workload.op import Buffer, Part
from workload.recipes.table import (
    DELAYED,
    GRADIENT,
    HISTORY,
    INPUT,
    TWO_LEVELS,
    WEIGHT,
    WHOLE,
    Block,
    Recipe,
)

EXPERTS_DIMENSIONS = 3  # of the weights of experts, the first of which counts them
SLOTS = (INPUT, WEIGHT, GRADIENT)  # of delayed scales, for each linear
Copy = tuple[str, str]  # the buffers of values and of scales


@dataclass(slots=True)
class Tensor:
    """What is cast: as an operand of which weight's linear, and for which blocks. Of experts it has
    `count` matrices of so many rows; of as many as the buffer `counts` says, if one is named."""

    kind: str
    weight: str
    rows: int
    columns: int
    count: int = 1
    counts: str = ""
    blocks: dict[Block, None] = field(default_factory=dict)


class Copies:
    """The buffers of copies. `tensors` has what linears multiply, `made` the copies that there are
    so far, `numbers` the weights of each part of the model, in the order of its linears."""

    def __init__(self, b: Builder, recipe: Recipe, *, trains: bool) -> None:
        self.b, self.recipe, self.trains = b, recipe, trains
        self.tensors: dict[str, Tensor] = {}
        self.made: dict[tuple[str, Block], Copy] = {}
        self.numbers: dict[Part, list[str]] = {}

    def axes_of(self, source: str, tensor: Tensor) -> Iterator[str]:
        """The axes whose ranks hold other parts of the same tensor. What experts get and give is
        one tensor on all ranks that exchange rows, and on those of x and context that have parts of
        the same sequences; so are the weights of all experts. With scales of two levels each expert
        has tensors of its own, whose columns alone are split."""
        b, split = self.b, self.b.layouts[tensor.weight].split
        alone = self._has_own_experts(tensor)
        if tensor.kind == WEIGHT:
            axes = tuple(axis for axes in (split[1:] if alone else split) for axis in axes)
        else:
            axes = split[-1 if tensor.kind == GRADIENT else -2]
            axes += () if alone else ("cp",)
            if self._of_experts(tensor):
                parts = b.shards_of("rows") if b.plan.sp else ()
                axes += () if alone else (*b.expert_axes, *parts)
            elif b.buffers[source].shape[0] != b.rows:
                axes += b.shards_of("rows")
        axes = tuple(axis for axis in dict.fromkeys(axes) if b.grid.size(axis) > 1)
        for axis in axes:
            if not any(axis.endswith(f"_{whole}") for whole in axes):
                yield axis

    def _of_experts(self, tensor: Tensor) -> bool:
        return len(self.b.layouts[tensor.weight].split) == EXPERTS_DIMENSIONS

    def _has_own_experts(self, tensor: Tensor) -> bool:
        """Whether a tensor is of experts each of which has largest values of its own."""
        return self.recipe.scaling == TWO_LEVELS and self._of_experts(tensor)

    def add(self, name: str, shape: tuple[int, ...], dtype: str, role: str, **how: Any) -> str:
        """Keep a buffer of the program; returns its name."""
        return self.b.add(Buffer(name, shape, dtype, role, **how))

    def declare(
        self, source: str, tensor: Tensor, *, role: str = "parameters", persistent: bool = False
    ) -> list[str]:
        """The buffers of a tensor's copies, each with that of its scales."""
        declared, of = [], self.b.buffers[source]
        how = {"persistent": persistent, "replicas": of.replicas, "part": of.part}
        for block in tensor.blocks:
            name = f"{source}.{self.recipe.dtype}{_direction(block)}"
            self.made[source, block] = name, f"{name}.scale"
            if tensor.counts and block != WHOLE:
                self._add_routed(source, tensor, block, role)
                declared += [name, f"{name}.scale"]
                continue
            # Two values of 4 bits share a byte; otherwise it is shaped as what it is a copy of.
            halved = self.recipe.dtype == "nvfp4"
            shape, dtype = (((of.elements + 1) // 2,), "uint8") if halved else (of.shape, "fp8")
            self.add(name, shape, dtype, role, rows_of=of.rows_of, **how)
            down, *across = _counts(tensor.rows, tensor.columns, block)
            scales = (down, *across) if block == WHOLE else (tensor.count * down, *across)
            self.add(f"{name}.scale", scales, self.recipe.scale_dtype, role, **how)
            declared += [name, f"{name}.scale"]
        return declared

    def declare_largest(
        self, source: str, tensor: Tensor, *, role: str = "workspace", persistent: bool = False
    ) -> list[str]:
        """The buffer of a tensor's largest value, if the recipe asks for it: with scales of two
        levels also that of the tensor turned, if it has a copy that is, and of experts each's."""
        if not self.recipe.wants_largest:
            return []
        how: dict[str, Any] = {}
        if persistent:
            of = self.b.buffers[source]
            how = {"persistent": True, "part": of.part, "replicas": of.replicas}
        count = 2 if self.recipe.scaling == TWO_LEVELS and tensor.kind != WEIGHT else 1
        shape = (tensor.count, count) if self._has_own_experts(tensor) else (count,)
        return [self.add(f"{source}.amax", shape, "fp32", role, **how)]

    def largest_of(self, sources: Iterable[str]) -> list[str]:
        """What a matmul reads besides: the largest values of which scales of two levels are."""
        two = self.recipe.scaling == TWO_LEVELS
        return [f"{source}.amax" for source in sources] if two else []

    def how_of_largest(self, tensor: Tensor) -> dict[str, Any]:
        """What a kernel must know to look for a tensor's largest value."""
        if self.recipe.scaling != TWO_LEVELS:
            return {}
        how: dict[str, Any] = {"rows": tensor.rows, "columns": tensor.columns}
        how |= {"count": tensor.count, "align": self.recipe.align, "scaling": TWO_LEVELS}
        return how | {"even": not tensor.counts}

    def _rounding_of(self, tensor: Tensor) -> dict[str, Any]:
        """What a kernel must know to round a gradient at random: where the elements of this rank
        are in that of the step's batch, whose columns are those of the weight; of experts' rows,
        which experts they are of, and which ranks exchanged them in which sequences."""
        layout = self.b.layouts[tensor.weight]
        how: dict[str, Any] = {"place": tensor.weight, "sequence": self.b.gpt.sequence}
        how["bands"], how["column_axes"] = layout.bands or layout.padded[-1:], layout.split[-1]
        how["row_axes"] = self.b.shards_of("rows") if tensor.rows != self.b.rows else ()
        if self._of_experts(tensor):
            how["expert_axes"], how["gathered_axes"] = layout.split[0], rows.gathered_over(self.b)
            how["sequences"] = self.b.plan.mbs
            how["row_axes"] = self.b.shards_of("rows") if self.b.plan.sp else ()
        return how

    def _add_routed(self, source: str, tensor: Tensor, block: Block, role: str) -> None:
        """The buffers of a copy of experts' rows, which begin at multiples of the recipe's `align`:
        room for the rows of each expert, which end anywhere, and for its last blocks."""
        of, (name, scale) = self.b.buffers[source], self.made[source, block]
        rows, align, (height, width) = of.shape[0], self.recipe.align, block
        how: dict[str, Any] = {"replicas": of.replicas, "part": of.part, "rows_of": of.rows_of}
        along, more = (align, tensor.count), {"rows_in": (align, tensor.count)}
        filled, columns = (rows // align + tensor.count, align), tensor.columns
        halved = self.recipe.dtype == "nvfp4"  # two values share a byte
        values = (*filled, (columns + 1) // 2 if halved else columns)
        self.add(name, values, "uint8" if halved else "fp8", role, **how, **more)
        scales: tuple[int, ...] = (*filled, (columns + width - 1) // width)
        if 1 < height < align:
            scales = filled[0], align // height, columns
        elif height > 1:
            along = height, tensor.count
            scales = rows // height + tensor.count, columns
        self.add(scale, scales, self.recipe.scale_dtype, role, **how, rows_in=along)

    def how_of(self, tensor: Tensor, part: Part) -> dict[str, Any]:
        """What a kernel must know to cast a tensor."""
        blocks, fmt = tuple(tensor.blocks), self.recipe.format_of(tensor.kind)
        how: dict[str, Any] = {"rows": tensor.rows, "columns": tensor.columns}
        how |= {"count": tensor.count, "even": not tensor.counts, "align": self.recipe.align}
        how |= {"blocks": blocks, "formats": (fmt,), "scaling": self.recipe.scaling}
        if self.recipe.scaling == DELAYED:
            number = self.numbers[part].index(tensor.weight)
            how["slot"] = len(SLOTS) * number + SLOTS.index(tensor.kind)
        if self.recipe.scaling == TWO_LEVELS:
            how["operand"] = tensor.kind
            how |= self._rounding_of(tensor) if tensor.kind == GRADIENT else {}
        return how

    def scales_of(self, tensor: Tensor, part: Part) -> tuple[list[str], list[str]]:
        """What a delayed cast reads and writes besides: the scales and the largest values."""
        if self.recipe.scaling != DELAYED:
            return [], []
        noted = [f"{part}.amaxes"] if self.trains else []
        return [f"{part}.scales", *noted], noted

    def declare_scales(self) -> None:
        """Declare delayed scales, if the recipe has any, and what they are made from."""
        if self.recipe.scaling != DELAYED:
            return
        for part, linears in self.numbers.items():
            count, how = len(SLOTS) * len(linears), {"persistent": True, "part": part}
            how["replicas"] = self.b.grid.ranks // self.b.grid.pp * self.b.copies
            for name in ("scales", "amaxes") if self.trains else ("scales",):
                self.add(f"{part}.{name}", (count,), "fp32", "workspace", **how)
            if self.trains:
                self.add(f"{part}.amax_history", (HISTORY, count), "fp32", "workspace", **how)


def _direction(block: Block) -> str:
    return {True: ".rows", False: ""}[block[0] == 1] + {True: ".columns", False: ""}[block[1] == 1]


def _counts(rows: int, columns: int, block: Block) -> tuple[int, ...]:
    """How many scales a tensor has."""
    if block == WHOLE:
        return (1,)
    return (rows + block[0] - 1) // block[0], (columns + block[1] - 1) // block[1]
