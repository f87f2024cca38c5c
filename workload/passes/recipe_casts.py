"""Linears of layers by a recipe, as a pass: casts, scales and what is gathered in 8 bits.

What a linear multiplies is cast from the plan's precision into the recipe's format in a kernel of
its own, which reads it once and writes a copy for each direction in which it is summed; the copies
of an input live on for the gradient of the weight, and the input itself does not. A scale of a
whole tensor wants its largest value, in a kernel before, reduced over the ranks that hold parts of
the tensor. A tensor is what a micro-batch of one device makes, whole in its rows and columns: ranks
of x, y and context hold parts of the same, those of z and data have tensors of their own.

A weight that a rank holds whole or, by one scale, in parts is cast once in a step, behind the
update, into a copy that stays. Parts are gathered in 8 bits. By scales of blocks, which parts do
not keep to, weights and rows are gathered as they are, and cast behind it.

Delayed scales of a part of the model lie side by side, three for each linear; what was largest is
noted in each cast, and scales follow at the step's end from the maximum over all ranks.

Not modelled: casts inside the kernels before; transposed copies that Hopper needs; layers that a
recipe leaves in 16 bits; Hadamard transforms and random rounding of nvfp4 are inside its casts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workload.lowering.builder import Builder
from workload.naming import op_name
from workload.op import (
    BACKWARD,
    COMPUTE,
    INPUT_GRAD,
    STEP,
    WEIGHT_CAST,
    WEIGHT_GATHER,
    WEIGHT_GRAD,
    Buffer,
    Op,
    Part,
)
from workload.passes.fp8 import is_linear
from workload.recipes import (
    DELAYED,
    GRADIENT,
    HISTORY,
    INPUT,
    LARGEST,
    NO_RECIPE,
    WEIGHT,
    WHOLE,
    Block,
    Recipe,
    recipe_of,
)

KINDS = {"": (INPUT, WEIGHT), INPUT_GRAD: (GRADIENT, WEIGHT), WEIGHT_GRAD: (INPUT, GRADIENT)}
SLOTS = (INPUT, WEIGHT, GRADIENT)  # of delayed scales, for each linear


def in_recipe(b: Builder, ops: Sequence[Op], *, trains: bool = True) -> list[Op]:
    """The ops with linears by the plan's recipe; what they need besides is among the builder's
    buffers. Without `trains` there is no update, and nothing that follows from it."""
    if b.plan.recipe == NO_RECIPE:
        return list(ops)
    return _Casts(b, ops, recipe_of(b.plan.recipe), trains=trains).rewritten()


@dataclass(frozen=True, slots=True)
class _Use:
    """A tensor as a matmul's operand: what it is, its rows and columns, the axis of the sum."""

    source: str
    kind: str
    rows: int
    columns: int
    axis: int


@dataclass(slots=True)
class _Tensor:
    """What is cast: as an operand of which weight's linear, and for which blocks."""

    kind: str
    weight: str
    rows: int
    columns: int
    blocks: dict[Block, None] = field(default_factory=dict)


Copy = tuple[str, str]  # the buffers of values and of scales


class _Casts:
    """A program's casts. `_tensors` has what linears multiply, `_copies` the copies that there are
    so far, `_numbers` the place of each linear in its part of the model."""

    def __init__(self, b: Builder, ops: Sequence[Op], recipe: Recipe, *, trains: bool) -> None:
        self._b, self._ops, self._recipe, self._trains = b, ops, recipe, trains
        self._tensors: dict[str, _Tensor] = {}
        self._copies: dict[tuple[str, Block], Copy] = {}
        self._numbers: dict[Part, list[str]] = {}
        self._gathered_from = {
            op.writes[0]: op.reads[0]
            for op in ops
            if op.kind == "all_gather" and len(op.reads) == 1
        }
        others = {name for op in ops if not is_linear(op) for name in op.reads}
        self._look_at_linears()
        self._gathers = set[str]()
        if recipe.of_tensors:
            self._gathers = {*self._gathered_from} & {*self._tensors} - others

    def _look_at_linears(self) -> None:
        weights: dict[str, str] = {}
        linears = [op for op in self._ops if is_linear(op)]
        for op in sorted(linears, key=lambda op: op.purpose == WEIGHT_GRAD):
            uses = _uses(op)
            if op.purpose != WEIGHT_GRAD:
                weight = self._gathered_from.get(uses[1].source, uses[1].source)
                weights |= {use.source: weight for use in uses}
                known = self._numbers.setdefault(op.part, [])
                known += [weight] if weight not in known else []
            for use in uses:
                tensor = _Tensor(use.kind, weights.get(use.source, ""), use.rows, use.columns)
                own = self._tensors.setdefault(use.source, tensor)
                own.blocks[self._recipe.block(use.kind, use.axis)] = None
        for name, tensor in self._tensors.items():
            if not tensor.weight:  # gathered once more for the gradient of the weight
                tensor.weight = self._weight_behind(name, weights)

    def _weight_behind(self, whole: str, weights: dict[str, str]) -> str:
        part = self._gathered_from[whole]
        return next(
            weights[other] for other, source in self._gathered_from.items()
            if source == part and other in weights
        )  # fmt: skip

    def rewritten(self) -> list[Op]:
        """The new ops."""
        self._declare_scales()
        result: list[Op] = []
        for op in self._ops:
            if is_linear(op):
                result += self._multiplied(op)
            elif op.kind == "all_gather" and op.writes[0] in self._gathers:
                result += self._gathered(op)
            else:
                result.append(op)
        return [*result, *self._behind_update()] if self._trains else result

    def _multiplied(self, op: Op) -> Iterator[Op]:
        copies, formats, blocks = list[Copy](), list[str](), list[Block]()
        for use in _uses(op):
            block = self._recipe.block(use.kind, use.axis)
            yield from self._made(op, use.source)
            copies.append(self._copies[use.source, block])
            formats.append(self._recipe.format_of(use.kind))
            blocks.append(block)
        (left, left_scale), (right, right_scale) = copies
        reads = left, right, *op.reads[2:], left_scale, right_scale
        how = {**op.attributes, "formats": tuple(formats), "blocks": tuple(blocks)}
        nbytes = sum(map(self._b.nbytes, (*reads, *op.writes)))
        yield replace(op, reads=reads, dtype=self._recipe.dtype, attributes=how, nbytes=nbytes)

    def _gathered(self, op: Op) -> Iterator[Op]:
        part, whole = op.reads[0], op.writes[0]
        own = self._tensors[whole]
        self._tensors.setdefault(
            part, _Tensor(own.kind, own.weight, *_shape(self._b, part), {WHOLE: None})
        )
        yield from self._made(op, part)
        values, scale = self._copies[part, WHOLE]
        buffer = self._b.buffers[whole] = replace(self._b.buffers[whole], dtype="fp8")
        self._copies[whole, WHOLE] = whole, scale
        yield replace(op, reads=(values,), nbytes=buffer.nbytes, dtype="fp8")

    def _made(self, op: Op, source: str) -> Iterator[Op]:
        """What makes the copies of a tensor, in front of an op, if there are none yet."""
        tensor = self._tensors[source]
        if (source, next(iter(tensor.blocks))) in self._copies:
            return
        if source in self._b.parameters:
            self._declare_copies(source, tensor, persistent=True)
            return
        role = "workspace" if tensor.kind == GRADIENT else "activations"
        role = "gathered" if tensor.kind == WEIGHT else role
        role = "workspace" if op.block.phase == BACKWARD and tensor.kind == INPUT else role
        copies = self._declare_copies(source, tensor, role=role)
        largest: list[str] = []
        place = op.reads.index(source)
        if self._recipe.wants_largest:
            largest = [self._add(f"{source}.amax", (1,), "fp32", "workspace")]
            yield self._before(op, "amax", place, [source], largest)
            axes = tuple(self._axes(source, tensor))
            if axes:
                yield self._reduced(op, place, largest[0], axes)
        reads, writes = self._scales_of(tensor, op.part)
        how = self._how(tensor, op.part)
        reads, writes = [source, *largest, *reads], [*copies, *writes]
        yield self._before(op, "quantise", place, reads, writes, **how)

    def _axes(self, source: str, tensor: _Tensor) -> Iterator[str]:
        """The axes whose ranks hold other parts of the same tensor."""
        b, split = self._b, self._b.layouts[tensor.weight].split
        columns = split[1 if tensor.kind == GRADIENT else 0]
        if tensor.kind == WEIGHT:
            columns = tuple(axis for axes in split for axis in axes)
        rows: tuple[str, ...] = ()
        if tensor.kind != WEIGHT:
            rows = b.shards_of("rows") if b.buffers[source].shape[0] != b.rows else ()
            rows = (*rows, "context")
        for axis in dict.fromkeys((*columns, *rows)):
            if b.grid.size(axis) > 1:
                yield axis

    def _before(
        self, op: Op, kind: str, place: int, reads: list[str], writes: list[str], **how: Any
    ) -> Op:
        label = f"{op.label}.{kind}{place}"
        name = op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed)
        nbytes = sum(map(self._b.nbytes, dict.fromkeys((*reads, *writes))))
        about = {"reads": tuple(reads), "writes": tuple(writes), "nbytes": nbytes, "flops": 0}
        about |= {"name": name, "label": label, "kind": kind, "stream": COMPUTE, "axes": ()}
        dtype = self._b.dtype
        return replace(op, **about, attributes=how, purpose="", dtype=dtype, launches=1, replicas=1)

    def _reduced(self, op: Op, place: int, largest: str, axes: tuple[str, ...]) -> Op:
        made = self._before(op, "all_reduce", place, [largest], [largest], reduction="max")
        label = f"{op.label}.amax{place}.reduce"
        name = op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed)
        return replace(made, name=name, label=label, axes=axes, nbytes=4, dtype="fp32")

    def _add(self, name: str, shape: tuple[int, ...], dtype: str, role: str, **how: Any) -> str:
        return self._b.add(Buffer(name, shape, dtype, role, **how))

    def _declare_copies(
        self, source: str, tensor: _Tensor, *, role: str = "parameters", persistent: bool = False
    ) -> list[str]:
        """The buffers of a tensor's copies, each with that of its scales."""
        declared, of = [], self._b.buffers[source]
        how = {"persistent": persistent, "replicas": of.replicas, "part": of.part}
        for block in tensor.blocks:
            name = f"{source}.{self._recipe.dtype}{_direction(block)}"
            # Two values of 4 bits share a byte; otherwise it is shaped as what it is a copy of.
            halved = self._recipe.dtype == "nvfp4"
            shape, dtype = (((of.elements + 1) // 2,), "uint8") if halved else (of.shape, "fp8")
            self._add(name, shape, dtype, role, **how)
            scales = _counts(tensor.rows, tensor.columns, block)
            self._add(f"{name}.scale", scales, self._recipe.scale_dtype, role, **how)
            self._copies[source, block] = name, f"{name}.scale"
            declared += [name, f"{name}.scale"]
        return declared

    def _how(self, tensor: _Tensor, part: Part) -> dict[str, Any]:
        blocks, fmt = tuple(tensor.blocks), self._recipe.format_of(tensor.kind)
        how: dict[str, Any] = {"rows": tensor.rows, "columns": tensor.columns}
        how |= {"blocks": blocks, "formats": (fmt,), "scaling": self._recipe.scaling}
        if self._recipe.scaling == DELAYED:
            number = self._numbers[part].index(tensor.weight)
            how["slot"] = len(SLOTS) * number + SLOTS.index(tensor.kind)
        return how

    def _scales_of(self, tensor: _Tensor, part: Part) -> tuple[list[str], list[str]]:
        """What a delayed cast reads and writes besides: the scales and the largest values."""
        if self._recipe.scaling != DELAYED:
            return [], []
        noted = [f"{part}.amaxes"] if self._trains else []
        return [f"{part}.scales", *noted], noted

    def _declare_scales(self) -> None:
        if self._recipe.scaling != DELAYED:
            return
        for part, linears in self._numbers.items():
            count, how = len(SLOTS) * len(linears), {"persistent": True, "part": part}
            how["replicas"] = self._b.grid.ranks // self._b.grid.pipe
            for name in ("scales", "amaxes") if self._trains else ("scales",):
                self._add(f"{part}.{name}", (count,), "fp32", "workspace", **how)
            if self._trains:
                self._add(f"{part}.amax_history", (HISTORY, count), "fp32", "workspace", **how)

    def _behind_update(self) -> list[Op]:
        """Scales for the next step, and the casts of weights."""
        b, b.ops, b.block = self._b, [], STEP
        if self._recipe.scaling == DELAYED:
            self._emit_scales()
        held = [(name, self._tensors[name]) for name in b.parameters if name in self._tensors]
        if self._recipe.wants_largest:
            self._emit_largest(held)
        for name, tensor in held:
            part = b.parameters[name].owner
            reads, writes = self._scales_of(tensor, part)
            largest = [f"{name}.amax"] if self._recipe.wants_largest else []
            copies = [each for block in tensor.blocks for each in self._copies[name, block]]
            about = {**self._how(tensor, part), "purpose": WEIGHT_CAST, "part": part}
            reads, writes = [name, *largest, *reads], [*copies, *writes]
            nbytes = sum(map(b.nbytes, dict.fromkeys((*reads, *writes))))
            b.op(f"{_own(name, part)}.quantise", "quantise", reads, writes, nbytes=nbytes, **about)
        return b.ops

    def _emit_largest(self, held: list[tuple[str, _Tensor]]) -> None:
        b, groups = self._b, dict[tuple[str, ...], list[str]]()
        for name, tensor in held:
            part, of = b.parameters[name].owner, b.buffers[name]
            how = {"persistent": True, "part": part, "replicas": of.replicas}
            largest = self._add(f"{name}.amax", (1,), "fp32", "workspace", **how)
            label = f"{_own(name, part)}.amax"
            b.op(label, "amax", [name], [largest], part=part, purpose=WEIGHT_CAST)
            axes = *self._axes(name, tensor), *b.layouts[name].flat
            apart = tuple(axis for axis in dict.fromkeys(axes) if b.grid.size(axis) > 1)
            groups.setdefault(apart, []).append(largest)
        for axes, names in groups.items():
            label = "amaxes.reduce" if len(groups) == 1 else f"amaxes.reduce.{'.'.join(axes)}"
            if axes:
                how = {"purpose": WEIGHT_CAST, "reduction": "max"}
                b.collective(label, "all_reduce", names, names, *axes, **how)

    def _emit_scales(self) -> None:
        b, every = self._b, [f"{part}.amaxes" for part in self._numbers]
        axes = [axis for axis in ("x", "y", "z", "context", "data") if b.grid.size(axis) > 1]
        if axes and every:
            b.collective("amaxes.reduce", "all_reduce", every, every, *axes, reduction="max")
        for part in self._numbers:
            largest = tuple(LARGEST[self._recipe.format_of(kind)] for kind in SLOTS)
            own = [f"{part}.{name}" for name in ("amaxes", "amax_history", "scales")]
            b.op("scales.update", "update_scales", own, own, largest=largest, part=part)


def _uses(op: Op) -> tuple[_Use, _Use]:
    """The two operands of a matmul, as they are stored."""
    m, n, k = (op.attributes[letter] for letter in "mnk")
    form, (left, right) = op.attributes["form"], KINDS[op.purpose]
    first = (m, k, 1) if form[0] == "N" else (k, m, 0)
    second = (k, n, 0) if form[1] == "N" else (n, k, 1)
    return _Use(op.reads[0], left, *first), _Use(op.reads[1], right, *second)


def _shape(b: Builder, name: str) -> tuple[int, int]:
    rows, *columns = b.buffers[name].shape
    return rows, columns[0] if columns else 1


def _direction(block: Block) -> str:
    return {True: ".rows", False: ""}[block[0] == 1] + {True: ".columns", False: ""}[block[1] == 1]


def _counts(rows: int, columns: int, block: Block) -> tuple[int, ...]:
    """How many scales a tensor has."""
    if block == WHOLE:
        return (1,)
    return (rows + block[0] - 1) // block[0], (columns + block[1] - 1) // block[1]


def _own(name: str, part: Part) -> str:
    """A parameter's name within its part of the model."""
    return name.removeprefix(f"{part}.")
