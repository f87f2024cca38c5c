"""Linears of layers by a recipe, as a pass: casts, scales and what is gathered in 8 bits.

What a linear multiplies is cast from the plan's precision into the recipe's format in a kernel of
its own, which reads it once and writes a copy for each direction in which it is summed; the copies
of an input live on for the gradient of the weight, and the input itself does not. A scale of a
whole tensor wants its largest value, in a kernel before, reduced over the ranks that hold parts of
the tensor. A tensor is what a micro-batch of one device makes, whole in its rows and columns: ranks
of x, y and context hold parts of the same, those of z and data have tensors of their own.

Rows that came to experts in 8 bits are cast from these, where linears alone read them: nothing
writes them in the plan's precision.

A weight that a rank holds whole or, by one scale, in parts is cast once in a step, behind the
update, into a copy that stays. Parts are gathered in 8 bits. By scales of blocks, which parts do
not keep to, weights and rows are gathered as they are, and cast behind it.

Delayed scales of a part of the model lie side by side, three for each linear; what was largest is
noted in each cast, and scales follow at the step's end from the maximum over all ranks.

Not modelled but of the recipe that is a stack's own (`stack_casts.py`): casts inside the kernels
before; transposed copies that Hopper needs; linears that stay in 16 bits. Hadamard transforms and
random rounding of nvfp4 are inside its casts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from topologies.records import record
from workload.kinds import DEQUANTISE_ROWS
from workload.lowering.builder import Builder
from workload.lowering.recipes.copies import Copies, Copy, Tensor
from workload.lowering.recipes.stack_casts import GROUPED, cast_by_stack, is_linear
from workload.lowering.recipes.weights import behind_update
from workload.naming import op_name
from workload.op import BACKWARD, COMPUTE, INPUT_GRAD, WEIGHT_GRAD, Op
from workload.op_attributes import Attributes
from workload.recipes.cast_kernels import INSIDE, CastKernels
from workload.recipes.table import (
    GRADIENT,
    INPUT,
    NO_RECIPE,
    TWO_LEVELS,
    WEIGHT,
    WHOLE,
    Block,
    recipe_of,
)

KINDS = {"": (INPUT, WEIGHT), INPUT_GRAD: (GRADIENT, WEIGHT), WEIGHT_GRAD: (INPUT, GRADIENT)}


def in_recipe(
    b: Builder, ops: Sequence[Op], kernels: CastKernels = INSIDE, *, trains: bool = True
) -> list[Op]:
    """The ops with linears by the plan's recipe; what they need besides is among the builder's
    buffers. `kernels` cast for a recipe that is the stack's own. Without `trains` there is no
    update, and nothing that follows from it."""
    if b.plan.training.recipe == NO_RECIPE:
        return list(ops)
    recipe = recipe_of(b.plan.training.recipe)
    if recipe.is_of_stack:
        every, added = cast_by_stack(ops, b.buffers, kernels)
        b.buffers |= added
        return every
    copies = Copies(b, recipe, trains=trains)
    return [*_Casts(ops, copies).rewritten(), *(behind_update(copies) if trains else ())]


@record
class _Use:
    """A tensor as a matmul's operand: what it is, its rows and columns, the axis of the sum."""

    source: str
    kind: str
    rows: int
    columns: int
    axis: int
    count: int = 1  # matrices, of experts
    counts: str = ""  # the buffer that says how many rows each has


class _Casts:
    """A program's casts: `_parts` has what each gathered buffer is gathered from, `_gathers` those
    of them that are gathered in 8 bits, since linears alone read them. `_came` has the casts back
    to 16 bits that are left out, by the buffers that they would write: linears alone read these."""

    def __init__(self, ops: Sequence[Op], copies: Copies) -> None:
        self._ops, self._copies, self._b, self._recipe = ops, copies, copies.b, copies.recipe
        gathers = [op for op in ops if op.kind == "all_gather" and len(op.reads) == 1]
        # What is gathered into a parameter are its updated parts, at the step's end.
        within = [op for op in gathers if op.writes[0] not in self._b.parameters]
        self._parts = {op.writes[0]: op.reads[0] for op in within}
        self._look_at_linears()
        others = {name for op in ops if not is_linear(op) for name in op.reads}
        whole = {*self._parts} & {*copies.tensors} - others
        wide = {op.writes[0]: op for op in ops if op.kind == DEQUANTISE_ROWS}
        self._came = {name: op for name, op in wide.items() if name not in others}
        self._gathers = whole if self._recipe.of_tensors else set[str]()

    def _look_at_linears(self) -> None:
        """Find what is cast for which blocks, and which weight's linear it belongs to: gradients of
        weights last, as they do not read it."""
        weights: dict[str, str] = {}
        linears = [op for op in self._ops if is_linear(op)]
        for op in sorted(linears, key=lambda op: op.purpose == WEIGHT_GRAD):
            uses = _uses(op)
            if op.purpose != WEIGHT_GRAD:
                weight = self._part(uses[1].source)
                weights |= {use.source: weight for use in uses}
                weights |= {self._part(use.source): weight for use in uses}
                numbered = self._copies.numbers.setdefault(op.part, [])
                numbered += [weight] if weight not in numbered else []
            known = [self._known(weights, use.source) for use in uses]
            for use, found in zip(uses, known, strict=True):
                # What is made again for its weight's gradient alone has the weight of that.
                weight = found or next(filter(None, known))
                each = use.rows, use.columns, use.count, use.counts
                tensor = Tensor(use.kind, weight, *each)
                own = self._copies.tensors.setdefault(use.source, tensor)
                own.blocks[self._recipe.block(use.kind, use.axis)] = None

    def _part(self, source: str) -> str:
        """What a buffer is gathered from, or itself."""
        return self._parts.get(source, source)

    def _known(self, weights: Mapping[str, str], source: str) -> str:
        """The weight whose linear a buffer is an operand of; "" where none reads it but that of a
        weight's gradient."""
        return weights.get(source) or weights.get(self._part(source), "")

    def rewritten(self) -> list[Op]:
        """The new ops."""
        self._copies.declare_scales()
        result: list[Op] = []
        for op in self._ops:
            if is_linear(op):
                result += self._multiplied(op)
            elif op.kind == "all_gather" and op.writes[0] in self._gathers:
                result += self._gathered(op)
            elif op.kind != DEQUANTISE_ROWS or op.writes[0] not in self._came:
                result.append(op)
        for name in self._came:
            del self._b.buffers[name]
        return result

    def _multiplied(self, op: Op) -> Iterator[Op]:
        copies_of = self._copies
        copies, formats, blocks = list[Copy](), list[str](), list[Block]()
        for use in _uses(op):
            block = self._recipe.block(use.kind, use.axis)
            yield from self._cast(op, use.source)
            copies.append(copies_of.made[use.source, block])
            formats.append(self._recipe.format_of(use.kind))
            blocks.append(block)
        (left, left_scale), (right, right_scale) = copies
        largest = copies_of.largest_of(use.source for use in _uses(op))
        reads = left, right, *op.reads[2:], left_scale, right_scale, *largest
        how: Attributes = {**op.attributes, "formats": tuple(formats), "blocks": tuple(blocks)}
        how["align"] = self._recipe.align
        nbytes = sum(map(self._b.nbytes, (*reads, *op.writes)))
        yield replace(op, reads=reads, dtype=self._recipe.dtype, attributes=how, nbytes=nbytes)

    def _gathered(self, op: Op) -> Iterator[Op]:
        """The gather of what a rank holds in 8 bits; its scale is that of the whole."""
        part, whole = op.reads[0], op.writes[0]
        of = self._copies.tensors[whole]
        rows, *columns = self._b.buffers[part].shape
        shape = rows, columns[0] if columns else 1
        held = Tensor(of.kind, of.weight, *shape, blocks={WHOLE: None})
        self._copies.tensors.setdefault(part, held)
        yield from self._cast(op, part)
        values, scale = self._copies.made[part, WHOLE]
        buffer = self._b.buffers[whole] = replace(self._b.buffers[whole], dtype="fp8")
        self._copies.made[whole, WHOLE] = whole, scale
        yield replace(op, reads=(values,), nbytes=buffer.nbytes, dtype="fp8")

    def _cast(self, op: Op, source: str) -> Iterator[Op]:
        """What makes the copies of a tensor, in front of an op, if there are none yet."""
        tensor = self._copies.tensors[source]
        if (source, next(iter(tensor.blocks))) in self._copies.made:
            return
        if source in self._b.parameters:
            self._copies.declare(source, tensor, persistent=True)
            self._copies.declare_largest(source, tensor, persistent=True)
            return
        role = _role(op, tensor.kind)
        values = self._copies.declare(source, tensor, role=role)
        place, largest = op.reads.index(source), list[str]()
        if self._recipe.wants_largest:
            kept = role if self._recipe.scaling == TWO_LEVELS else "workspace"
            largest = self._copies.declare_largest(source, tensor, role=kept)
            how = self._copies.how_of_largest(tensor)
            read = [source, *self._counts_of(tensor)]
            yield self._before(op, "amax", place, read, largest, how)
            if axes := tuple(self._copies.axes_of(source, tensor)):
                yield self._reduced(op, place, largest[0], axes)
        reads, writes = self._copies.scales_of(tensor, op.part)
        how = self._copies.how_of(tensor, op.part)
        if came := self._came.get(source):
            source, how = came.reads[0], {**how, **came.attributes, "sent": True}
        reads = [source, *largest, *reads, *self._counts_of(tensor)]
        writes = [*values, *writes]
        yield self._before(op, "quantise", place, reads, writes, how)

    def _counts_of(self, tensor: Tensor) -> list[str]:
        """What says how many rows each expert has, if each is cast by itself."""
        return [] if self._recipe.of_tensors or not tensor.counts else [tensor.counts]

    def _before(
        self,
        op: Op,
        kind: str,
        place: int,
        reads: list[str],
        writes: list[str],
        how: Mapping[str, Any],
    ) -> Op:
        label = f"{op.label}.{kind}{place}"
        name = op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed)
        nbytes = sum(map(self._b.nbytes, dict.fromkeys((*reads, *writes))))
        about: dict[str, Any] = {"reads": tuple(reads), "writes": tuple(writes), "flops": 0}
        about |= {"nbytes": nbytes, "purpose": "", "launches": 1, "replicas": 1}
        about |= {"name": name, "label": label, "kind": kind, "stream": COMPUTE, "axes": ()}
        return replace(op, **about, attributes=cast(Attributes, how), dtype=self._b.dtype)

    def _reduced(self, op: Op, place: int, largest: str, axes: tuple[str, ...]) -> Op:
        made = self._before(op, "all_reduce", place, [largest], [largest], {"reduction": "max"})
        label, nbytes = f"{op.label}.amax{place}.reduce", self._b.nbytes(largest)
        name = op_name(op.micro_batch, op.part, label, recomputed=op.is_recomputed)
        return replace(made, name=name, label=label, axes=axes, nbytes=nbytes, dtype="fp32")


def _role(op: Op, kind: str) -> str:
    """What a copy counts as: an input's lives on until the backward pass."""
    if kind == WEIGHT:
        return "gathered"
    return "workspace" if kind == GRADIENT or op.block.phase == BACKWARD else "activations"


def _uses(op: Op) -> tuple[_Use, _Use]:
    """The two operands of a matmul, as they are stored."""
    m, n, k = op.mnk
    form, (left, right) = op.attributes["form"], KINDS[op.purpose]
    first = (m, k, 1) if form[0] == "N" else (k, m, 0)
    second = (k, n, 0) if form[1] == "N" else (n, k, 1)
    if op.kind != GROUPED:
        return _Use(op.reads[0], left, *first), _Use(op.reads[1], right, *second)
    # With a capacity too each expert's rows are filled up to whole blocks.
    count, counts = op.attributes["count"], op.reads[2]
    of_weight = "" if right == WEIGHT else counts
    one = _Use(op.reads[0], left, *first, count, counts)
    return one, _Use(op.reads[1], right, *second, count, of_weight)
