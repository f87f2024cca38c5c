"""What writes the ops and buffers of a program, in terms of the block at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from workload.gpt import GPT
from workload.lowering.few_layers import FewLayers, every_layer
from workload.naming import op_name, op_prefix
from workload.op import (
    BACKWARD,
    COMPUTE,
    FORWARD,
    MIXER,
    MODEL,
    NO_ATTRIBUTES,
    STEP,
    TURNED,
    Buffer,
    Op,
    Part,
)
from workload.op_attributes import Attributes
from workload.plan import Plan
from workload.stages import places_of


class OpWriter:
    """Ops and buffers of the program being written."""

    def __init__(self, gpt: GPT, plan: Plan, stage: int, few: FewLayers | None = None) -> None:
        self.few = few or every_layer(gpt, plan)
        self.gpt = gpt
        self.plan = plan
        self.stage = stage
        self.grid = plan.grid
        places = places_of(plan)
        self.head_stage = places.head_stage  # which holds the classifier, in two ways one of two
        self.has_head = any(map(places.ends, places.numbers(stage)))
        self.dtype = plan.training.precision
        self.ops: list[Op] = []
        self.buffers: dict[str, Buffer] = {}
        self.block = STEP
        self.module = MIXER
        self._sizes: dict[str, tuple[Buffer, int]] = {}
        self._prefixed = STEP, ""  # a block, and what names in it begin with

    @contextmanager
    def within(self, module: str) -> Iterator[None]:
        """Ops written meanwhile belong to another module of the layer (see `workload/op.py`)."""
        around, self.module = self.module, module
        try:
            yield
        finally:
            self.module = around

    def nbytes(self, name: str) -> int:
        """A buffer's size, worked out once for all the ops that touch it."""
        buffer, known = self.buffers[name], self._sizes.get(name)
        if known is None or known[0] is not buffer:
            known = self._sizes[name] = buffer, buffer.nbytes
        return known[1]

    def nbytes_of_all(self, name: str) -> int:
        """The size of a buffer and of those that it stands for."""
        return self.nbytes(name) * self.buffers[name].count

    def name(self, label: str) -> str:
        """The name of what belongs to the block at hand."""
        own = self.block
        if own is not self._prefixed[0]:
            prefix = op_prefix(own.micro_batch, own.part, recomputed=own.is_recomputed)
            self._prefixed = own, prefix
        return self._prefixed[1] + label

    def tensor(
        self,
        label: str,
        shape: tuple[int, ...],
        dtype: str = "",
        role: str = "activations",
        rows_of: str = "",
    ) -> str:
        """A buffer of the block at hand that lives within the step; returns its name."""
        name = self.name(label)
        return self.add(Buffer(name, shape, dtype or self.dtype, role, rows_of=rows_of))

    def inputs(self, label: str, shape: tuple[int, ...], copies: int) -> str:
        """Whole numbers of a micro-batch that are there when the step begins, in `copies` equal
        copies over the whole grid."""
        m, name = self.block.micro_batch, self.input_name(label)
        held = Buffer(name, shape, "int64", "workspace", True, copies, micro_batch=m)
        return name if name in self.buffers else self.add(held)

    def input_name(self, label: str) -> str:
        """The name of such numbers; all passes over the batch have the same ones."""
        m, again = self.block.micro_batch, self.plan.passes > 1
        return op_name(int(m % self.plan.micro_batches) if again else m, MODEL, label)

    def add(self, buffer: Buffer) -> str:
        """Keep a buffer; returns its name."""
        if count := self.few.counts.get(buffer.part):
            buffer = replace(buffer, count=count)
        self.buffers[buffer.name] = buffer
        return buffer.name

    def op(
        self,
        label: str,
        kind: str,
        reads: Sequence[str],
        writes: Sequence[str],
        *,
        nbytes: int = -1,
        flops: int = 0,
        replicas: int = 1,
        part: Part | None = None,
        micro_batch: int | None = None,
        purpose: str = "",
        **attributes: Any,
    ) -> None:
        """Append a compute op; its memory traffic is that of its operands unless given. It works
        for its block's part and micro-batch unless others are given."""
        operands = tuple(reads), tuple(writes)
        if nbytes < 0:
            size = self._size_of(part)
            nbytes = sum(map(size, operands[0] + operands[1]))
        sizes = nbytes, flops, replicas, self.dtype
        how = cast(Attributes, attributes) if attributes else NO_ATTRIBUTES
        place = part, micro_batch
        self._append(label, kind, operands, COMPUTE, (), sizes, how, purpose, place)

    def _size_of(self, part: Part | None) -> Callable[[str], int]:
        """What says how many bytes an op moves for an operand: one of no layer moves those of all
        layers."""
        of_layer = (self.block.part if part is None else part).is_layer
        return self.nbytes if of_layer or not self.few.counts else self.nbytes_of_all

    def _append(
        self,
        label: str,
        kind: str,
        operands: tuple[tuple[str, ...], tuple[str, ...]],
        stream: str,
        axes: tuple[str, ...],
        sizes: tuple[int, int, int, str],
        attributes: Attributes,
        purpose: str,
        place: tuple[Part | None, int | None],
    ) -> None:
        """Append an op. `sizes` are its bytes, FLOPs and replicas, and its dtype; arguments have
        no names on the way to `Op`, of which a program makes thousands."""
        own, (part, m) = self.block, place
        if part is None and m is None:
            part, m, name = own.part, own.micro_batch, self.name(label)
        else:
            m = own.micro_batch if m is None else m
            part = own.part if part is None else part
            name = op_name(m, part, label, recomputed=own.is_recomputed)
        nbytes, flops, replicas, dtype = sizes
        self.ops.append(
            Op(
                *(name, kind, *operands, own, stream, axes),
                nbytes,
                flops,
                replicas,
                dtype,
                attributes,
                m,
                part,
                label,
                purpose,
                1,
                self.module,
            )
        )

    def collective(
        self,
        label: str,
        kind: str,
        read: Sequence[str],
        write: Sequence[str],
        *axes: str,
        part: Part | None = None,
        purpose: str = "",
        **how: Any,
    ) -> None:
        """Append a blocking collective over the axes that have more than one rank, of the dtype of
        its payload: parts of another one are cast as they are copied to be gathered."""
        payload = write if kind == "all_gather" else read
        wide = tuple([axis for axis in axes if self.grid.size(axis) > 1])
        sizes = sum(map(self._size_of(part), payload)), 0, 1, self.buffers[payload[0]].dtype
        operands, attributes = (tuple(read), tuple(write)), cast(Attributes, how or NO_ATTRIBUTES)
        self._append(label, kind, operands, COMPUTE, wide, sizes, attributes, purpose, (part, None))

    def message(
        self,
        label: str,
        kind: str,
        tag: str,
        reads: Sequence[str],
        writes: Sequence[str],
        peer: int,
        *,
        turned: bool = False,
    ) -> None:
        """Append a send or a receive on a stream of its own; `peer` is 1 for the next stage, -1 for
        the previous one. `turned` says that it is one between chunks that stand the other way
        round, in a V."""
        forward, way = ((peer > 0) == (kind == "send")) != turned, {TURNED: True} if turned else {}
        direction = ".".join([FORWARD if forward else BACKWARD, *way])
        moved = self.buffers[(reads or writes)[0]]
        link = (self.stage + min(peer, 0)) % self.grid.pp
        operands, sizes = (tuple(reads), tuple(writes)), (moved.nbytes, 0, 1, moved.dtype)
        how = cast(Attributes, {"tag": tag, "peer": peer, "link": link, **way})
        stream, place = f"{kind}.{direction}", (None, None)
        self._append(label, kind, operands, stream, ("pp",), sizes, how, "", place)

    def all_reduce(
        self, label: str, buffer: str, *axes: str, purpose: str = "", **how: Any
    ) -> None:
        """Append an all-reduce in place, if the axes have more than one rank between them."""
        if self.grid.size(*axes) > 1:
            self.collective(label, "all_reduce", [buffer], [buffer], *axes, purpose=purpose, **how)
