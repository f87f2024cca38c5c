"""The program: the ops of one rank in one step, and what follows from them by counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

from topologies.records import record
from workload.dataflow import Waits
from workload.gpt import GPT
from workload.kinds import RECV
from workload.layout import Layout
from workload.memory import MemoryUse, use_of
from workload.op import Block, Buffer, Op
from workload.pipeline.schedule import Slot
from workload.plan import Plan
from workload.sizes.arrays import Bytes
from workload.structure import Structure


@record(slots=False)
class Program:
    """What a rank of one pipeline stage performs in one training step: ops in issue order, on named
    buffers.

    `layouts` says for each parameter which part of the whole model's tensor a rank holds, `states`
    of which part it keeps the optimizer state; `slot_of` to which slot of the schedule a block of
    ops belongs. `like` is the outline of a program that differs in sizes alone, where there is one,
    and `known_nbytes` the sizes of all buffers, where they are known.
    """

    gpt: GPT
    plan: Plan
    ops: Sequence[Op]
    buffers: Mapping[str, Buffer]
    layouts: Mapping[str, Layout]
    states: Mapping[str, Layout] = field(default_factory=dict)
    stage: int = 0
    slot_of: Mapping[Block, Slot] = field(default_factory=dict)
    like: Structure | None = None
    known_nbytes: Sequence[int] = ()

    @cached_property
    def outline(self) -> Structure:
        """What it has in common with programs that differ in sizes alone."""
        return self.like or Structure(self.ops, self.buffers, self.slot_of)

    @property
    def waits(self) -> list[Waits]:
        """For each op the indices of the ops it waits for on other streams."""
        return self.outline.waits

    @property
    def releases(self) -> list[list[str]]:
        """For each op the buffers that are free after it."""
        return self.outline.releases

    @cached_property
    def levels(self) -> Bytes:
        """Bytes in use during each op by role, (roles, ops)."""
        return self.outline.levels(self.nbytes)

    @cached_property
    def nbytes(self) -> Sequence[int]:
        """The sizes of all buffers, in their order."""
        return self.known_nbytes or [buffer.nbytes for buffer in self.buffers.values()]

    @property
    def memory(self) -> list[MemoryUse]:
        """Memory in use during each op."""
        pairs = zip(self.ops, self.levels.T, strict=True)
        return [use_of(level, op.name) for op, level in pairs]

    @property
    def peak(self) -> MemoryUse:
        """The first op at which most memory is in use."""
        return max(self.memory, key=lambda use: use.total_bytes)

    @property
    def parameters(self) -> int:
        """Trained parameters of this stage, padding of the vocabulary included; those that several
        stages hold count in equal parts."""
        held = (b for b in self.buffers.values() if b.is_parameter)
        ranks = self.plan.grid.ranks
        return sum(b.elements * ranks // b.replicas for b in held)

    @property
    def model_flops(self) -> int:
        """FLOPs of the stage's step over all its ranks, each once, without recomputation and the
        update's."""
        return self._flops(beyond=False)

    @property
    def hardware_flops(self) -> int:
        """FLOPs of the stage's step over all its ranks, recomputation and update included, copies
        left out."""
        return self._flops(beyond=False) + self._flops(beyond=True)

    @property
    def comm_bytes(self) -> dict[str, int]:
        """Payload of one rank's collectives, and of the messages that it sends, by axis (`x`,
        `z+dp`, ...)."""
        volume: dict[str, int] = {}
        for op in self.ops:
            if op.communicates:
                key = "+".join(op.axes)
                volume[key] = volume.get(key, 0) + (op.nbytes if op.kind != RECV else 0)
        return volume

    def _flops(self, *, beyond: bool) -> int:
        ranks = self.plan.grid.ranks // self.plan.pp
        return sum(
            op.flops * ranks // op.replicas
            for op in self.ops
            if op.flops and op.is_beyond_model == beyond
        )
