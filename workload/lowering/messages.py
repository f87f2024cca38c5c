"""Messages between pipeline stages: what a slot receives and sends, and when it waits for them.

In which order messages are posted and awaited says `workload/pipeline/message_order.py`. Posted
they run on streams of their own, and fences of the compute stream wait for them; DeepSpeed's stand
on the compute stream itself. In a V the way back has messages of its own, of either direction too,
and between two chunks of one stage there is none.

In the directions of `scattered` each rank of x sends its part of the rows, over a NIC of its own
where there are several, and the parts are gathered over x where they arrive.
Source: Narayanan et al. (SC21), section 4.1; microsoft/DeepSpeed, runtime/pipe/engine.py.
Not modelled: DeepSpeed keeps but a part of what it sent, and gathers it again before the backward
pass; and it sends the parts' sizes as a message of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workload.lowering.builder import Builder
from workload.lowering.chunk import Chunks
from workload.lowering.layers import sequence_parallel as rows
from workload.naming import op_name
from workload.op import COMPUTE, MODEL, Block, Buffer, Op
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.pipeline.message_order import (
    AHEAD,
    ARRIVED,
    AWAITED,
    DEEPSPEED,
    RECEIVE,
    SEND,
    SENT,
    MessageStep,
    StageLine,
)
from workload.pipeline.order import Order
from workload.pipeline.schedule import BACKWARD, FORWARD, SILENT, Slot
from workload.stages import order_of_messages


class Messages:
    """The messages around the slots of one stage, asked for in the order of the schedule; those of
    slots that stand `apart` are awaited right where they are posted."""

    def __init__(
        self,
        b: Builder,
        chunks: Chunks,
        order: Sequence[Slot],
        behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
        *,
        apart: bool = False,
    ) -> None:
        self._b = b
        self._scattered = behaviour.scatter_gather if rows.parts(b) == 1 < b.grid.tp else ()
        self._chunks = chunks
        self._order = Order.of(order).slots
        self._how = order_of_messages(behaviour.messages, b.plan)
        receives, sends = [
            [holds(slot) for slot in order] for holds in (self._receives, self._sends)
        ]
        self._gaps: Sequence[Sequence[MessageStep]] = [[]] * (len(order) + 1)
        if apart:
            self._gaps = _apart(receives, sends)
        elif any(receives) or any(sends):
            line = StageLine(
                order=Order.of(order),
                receives=np.array(receives, dtype=np.bool_),
                sends=np.array(sends, dtype=np.bool_),
                turned=np.array([self._turned(slot) for slot in order], dtype=np.bool_),
                stage=b.stage,
                stages=b.plan.pp,
                paired=b.plan.in_pairs,
            )
            self._gaps = line.gaps(self._how).lists

    def source(self, number: int) -> str:
        """The buffer in which a slot's input arrives, "" for one that needs none."""
        slot = self._order[number]
        if self._receives(slot):
            return self._stream(slot, self._arrival(slot))
        return self._from_here(slot)

    def _from_here(self, slot: Slot) -> str:
        """What another chunk of this stage left for a slot, "" where none does."""
        number, places = self._chunks.number(slot.chunk), self._chunks.places
        met = number if slot.work == FORWARD else number + 1
        if slot.work in SILENT or not places.meets(met):
            return ""
        return self._chunks.outputs[replace(slot, chunk=1 - slot.chunk)]

    def gathered(self, number: int) -> tuple[list[Op], str]:
        """The ops that make a slot's input whole, and the buffer that then holds it."""
        b, slot = self._b, self._order[number]
        b.ops, source = [], self.source(number)
        if not (self._receives(slot) and _direction(slot) in self._scattered):
            return [], source
        b.block, label = self._block(slot), self._arrival(slot)
        whole = b.tensor(f"{label}.whole", (b.rows, b.gpt.hidden // b.grid.y))
        b.collective(f"{label}.gather", "all_gather", [source], [whole], "tp")
        return b.ops, whole

    def scattered(self, number: int) -> list[Op]:
        """The op that cuts this rank's part out of a slot's output, behind the slot's own ops."""
        b, slot = self._b, self._order[number]
        b.ops = []
        if not (self._sends(slot) and _direction(slot) in self._scattered):
            return []
        b.block, output = self._block(slot), self._chunks.outputs[slot]
        part = b.tensor(f"{self._departure(slot)}.part", self._shape(slot))
        b.op(f"{self._departure(slot)}.cut", "slice", [output], [part], nbytes=2 * b.nbytes(part))
        self._chunks.outputs[slot] = part
        return b.ops

    def before(self, number: int) -> list[Op]:
        """What stands before a slot's own ops."""
        return self._in_gap(number)

    def after(self, number: int) -> list[Op]:
        """What stands behind the last slot's own ops; behind others there is nothing."""
        return self._in_gap(number + 1) if number + 1 == len(self._order) else []

    def _in_gap(self, number: int) -> list[Op]:
        b, gap = self._b, self._gaps[number]
        b.ops = []
        if self._how in (AHEAD, AWAITED):  # a stream's ops follow each other, so this is the same
            gap = sorted(gap, key=lambda step: step.what == ARRIVED)
        for step in gap:
            slot = self._order[step.place]
            b.block = self._block(slot)
            if step.posts:
                (self._receive if step.comes else self._send)(slot)
            elif self._how != DEEPSPEED:
                label = self._arrival(slot) if step.comes else self._departure(slot)
                awaited = self.source(step.place) if step.comes else b.name(f"{label}.sent")
                b.op(f"{label}.{step.what}", "fence", [awaited], [], nbytes=0)
        return [replace(op, stream=COMPUTE) for op in b.ops] if self._how == DEEPSPEED else b.ops

    def _receive(self, slot: Slot) -> None:
        label, turned = self._arrival(slot), self._turned(slot)
        peer = -1 if (_direction(slot) == FORWARD) != turned else 1
        arrived, tag = [self._stream(slot, label)], _tag(slot, label)
        self._b.message(f"{label}.recv", "recv", tag, [], arrived, peer, turned=turned)

    def _send(self, slot: Slot) -> None:
        """Send a slot's output to where it arrives: the next chunk's input, or the previous
        chunk's output gradient."""
        forward, number = slot.work == FORWARD, self._chunks.number(slot.chunk)
        there = _label(number + 1, "input") if forward else _label(number - 1, "grad")
        label = self._departure(slot)
        token, tag = self._b.tensor(f"{label}.sent", (0,), role="workspace"), _tag(slot, there)
        turned = self._turned(slot)
        peer, output = 1 if forward != turned else -1, self._chunks.outputs[slot]
        self._b.message(f"{label}.send", "send", tag, [output], [token], peer, turned=turned)

    def _receives(self, slot: Slot) -> bool:
        return self._meets_message(slot, arrives=slot.work == FORWARD)

    def _sends(self, slot: Slot) -> bool:
        return self._meets_message(slot, arrives=slot.work != FORWARD)

    def _meets_message(self, slot: Slot, *, arrives: bool) -> bool:
        """Whether a message passes between the slot's chunk and the one before it (where a forward
        pass arrives), or the one behind it."""
        at_end = self._chunks.is_first if arrives else self._chunks.is_last
        if slot.work in SILENT or at_end(slot.chunk):
            return False
        number = self._chunks.number(slot.chunk)
        return not self._chunks.places.meets(number if arrives else number + 1)

    def _turned(self, slot: Slot) -> bool:
        return self._chunks.places.turns_back(self._chunks.number(slot.chunk))

    def _arrival(self, slot: Slot) -> str:
        what = "input" if slot.work == FORWARD else "grad"
        return _label(self._chunks.number(slot.chunk), what)

    def _departure(self, slot: Slot) -> str:
        what = "output" if slot.work == FORWARD else "input.grad"
        return _label(self._chunks.number(slot.chunk), what)

    def _shape(self, slot: Slot) -> tuple[int, int]:
        b = self._b
        parts = b.grid.tp if _direction(slot) in self._scattered else rows.parts(b)
        return b.rows // parts, b.gpt.hidden // b.grid.y

    def _stream(self, slot: Slot, label: str) -> str:
        """What arrives of the residual stream between two chunks, or of its gradient."""
        shape = self._shape(slot)
        return self._b.add(Buffer(_tag(slot, label), shape, self._b.dtype, "activations"))

    def _block(self, slot: Slot) -> Block:
        return Block(slot.micro_batch, MODEL, slot.work, chunk=self._chunks.number(slot.chunk))


def _apart(receives: Sequence[bool], sends: Sequence[bool]) -> list[list[MessageStep]]:
    """What is posted and awaited before each slot, and behind the last one."""
    gaps: list[list[MessageStep]] = [[] for _ in range(len(receives) + 1)]
    for place, (comes, leaves) in enumerate(zip(receives, sends, strict=True)):
        gaps[place] += [MessageStep(what, place) for what in (RECEIVE, ARRIVED) if comes]
        gaps[place + 1] += [MessageStep(what, place) for what in (SEND, SENT) if leaves]
    return gaps


def _direction(slot: Slot) -> str:
    return FORWARD if slot.work == FORWARD else BACKWARD


def _label(number: int, what: str) -> str:
    """What of a chunk, by its number in the whole model, a message carries."""
    return f"c{number}.{what}"


def _tag(slot: Slot, label: str) -> str:
    """What both sides of a message call it."""
    return op_name(slot.micro_batch, MODEL, label)
