"""What the slots of a stage take: time, memory, FLOPs and payload, from a few of its micro-batches.

The first micro-batch, one in the middle and the last stand for all: the first overwrites gradients
where others add to them, the last sends them on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.network import Ints
from workload.dataflow import Waits, waits
from workload.forms import Forms
from workload.gpt import GPT
from workload.lowering import lower_slots, lower_slots_again
from workload.op import ROLES, Op
from workload.plan import Plan
from workload.program import Program
from workload.schedule import Slot
from workload.stages import samples

STEP = "step"


Lives = dict[str, tuple[list[str], list[str]]]


@dataclass(frozen=True)
class Part:
    """The ops of a slot, or of the step's end, by themselves.

    `lives` has for each op the buffers that it brings to life, and those that nobody needs after
    it.
    """

    program: Program
    ops: Sequence[Op]
    lives: Lives

    @cached_property
    def waits(self) -> list[Waits]:
        """What the ops wait for among themselves."""
        return waits(self.ops)

    @cached_property
    def comm_bytes(self) -> dict[str, int]:
        """Payload of a rank's collectives, by axes."""
        volume: dict[str, int] = {}
        for op in self.ops:
            if op.is_collective:
                volume["+".join(op.axes)] = volume.get("+".join(op.axes), 0) + op.nbytes
        return volume

    @cached_property
    def flops(self) -> tuple[int, int]:
        """FLOPs of all ranks of the stage, without and with recomputation."""
        ranks = self.program.plan.grid.ranks // self.program.plan.pipe
        each = [op.flops * ranks // op.replicas for op in self.ops]
        again = [op.block.endswith("recompute") for op in self.ops]
        model = sum(flops for flops, recomputed in zip(each, again, strict=True) if not recomputed)
        return model, sum(each)

    @cached_property
    def memory(self) -> tuple[Ints, Ints, str]:
        """Bytes by role on top of those before, at the op where most are in use and after the last
        op, and the former op's name. What a message brings is counted where it arrives."""
        buffers = self.program.buffers
        level = np.zeros(len(ROLES), dtype=np.int64)
        most, where = level.copy(), ""
        for op in self.ops:
            born, gone = self.lives[op.name]
            for name in born:
                level[ROLES.index(buffers[name].role)] += buffers[name].nbytes
            if not where or level.sum() > most.sum():
                most, where = level.copy(), op.name
            for name in gone:
                level[ROLES.index(buffers[name].role)] -= buffers[name].nbytes
        return most, level, where


@dataclass(frozen=True)
class Kind:
    """Stages that hold as many layers in each chunk, and the same ends of the model. `slots` are
    those of the sampled micro-batches; one may have no ops."""

    plan: Plan
    program: Program
    slots: Sequence[Slot]

    @cached_property
    def end(self) -> Part:
        """What comes after all slots."""
        ops = [op for op in self.program.ops if op.block == STEP]
        return Part(self.program, ops, self._lives)

    def part(self, slot: Slot) -> Part:
        """What stands for a slot of any micro-batch."""
        return self._parts[Slot(slot.work, slot.chunk, self.like(slot))]

    def like(self, slot: Slot) -> int:
        """The sampled micro-batch that stands for a slot's."""
        m, last = slot.micro_batch, self._last
        return m if m in (0, last) else min(1, last)

    @cached_property
    def _last(self) -> int:
        return self.plan.micro_batches - 1

    def counts(self, micro_batches: int) -> dict[Slot, int]:
        """How many slots of a step of so many micro-batches each sampled one stands for."""
        middle = 1 + micro_batches - len(samples(self.plan))
        unlike = {0, samples(self.plan)[-1]}
        return {slot: 1 if slot.micro_batch in unlike else middle for slot in self._parts}

    def flops(self, micro_batches: int) -> tuple[int, int]:
        """FLOPs of all ranks of a stage in a step, without and with recomputation."""
        each = [
            [count * flops for flops in self.part(slot).flops]
            for slot, count in self.counts(micro_batches).items()
        ]
        model, hardware = (sum(column) for column in zip(*each, self.end.flops, strict=True))
        return model, hardware

    def volume(self, micro_batches: int) -> tuple[int, dict[str, int]]:
        """How many ops a rank performs in a step, and the payload of its collectives by axes;
        messages, and the waits for them, left out."""
        ops, volume = len(self.end.ops), dict(self.end.comm_bytes)
        for slot, count in self.counts(micro_batches).items():
            ops += count * len(self.part(slot).ops)
            for key, nbytes in self.part(slot).comm_bytes.items():
                volume[key] = volume.get(key, 0) + count * nbytes
        return ops, volume

    def ending(self, last: Slot) -> tuple[Sequence[Op], list[Waits]]:
        """The ops of the last slot and of what comes after all slots, with their waits."""
        if last not in self._endings:
            ops = [*self.part(last).ops, *self.end.ops]
            self._endings[last] = ops, waits(ops)
        return self._endings[last]

    def awaited(self, op: Op) -> list[str]:
        """The names of what an op of the program waits for on other streams."""
        ops = self.program.ops
        return [ops[index].name for index in self.program.waits[self._index[op.name]]]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {op.name: index for index, op in enumerate(self.program.ops)}

    @cached_property
    def _endings(self) -> dict[Slot, tuple[Sequence[Op], list[Waits]]]:
        return {}

    @cached_property
    def _parts(self) -> dict[Slot, Part]:
        ops: dict[Slot, list[Op]] = {slot: [] for slot in self.slots}
        for op in self.program.ops:
            slot = self.program.slot_of.get(op.block)
            if slot is not None and not _is_around(op):
                ops[slot].append(op)
        return {slot: Part(self.program, found, self._lives) for slot, found in ops.items()}

    @cached_property
    def _lives(self) -> Lives:
        lives, seen = Lives(), set[str]()
        for op, gone in zip(self.program.ops, self.program.releases, strict=True):
            born = [name for name in op.writes if not self.program.buffers[name].persistent]
            lives[op.name] = ([name for name in born if name not in seen], gone)
            seen.update(born)
        return lives

    @cached_property
    def message_bytes(self) -> int:
        """Bytes of the residual stream between two chunks."""
        return next((op.nbytes for op in self.program.ops if op.is_message), 0)

    def persistent(self, micro_batches: int) -> Ints:
        """Bytes by role that are there all the time, with the tokens of so many micro-batches."""
        level, each = np.zeros(len(ROLES), dtype=np.int64), 0
        for buffer in self.program.buffers.values():
            if buffer.persistent:
                level[ROLES.index(buffer.role)] += buffer.nbytes
                each += buffer.nbytes if buffer.name.startswith("m0.") else 0
        level[ROLES.index("workspace")] += (micro_batches - len(samples(self.plan))) * each
        return level


def kind_of(gpt: GPT, plan: Plan, stage: int, order: Sequence[Slot], forms: Forms) -> Kind:
    """The kind of a stage that runs these slots."""
    chosen = [slot for slot in order if slot.micro_batch in samples(plan)]
    if forms:
        return Kind(plan, lower_slots(gpt, plan, stage, chosen, forms), chosen)
    return Kind(plan, lower_slots_again(gpt, plan, stage, chosen), chosen)


def _is_around(op: Op) -> bool:
    """Whether an op stands between slots: a message, or a wait for one."""
    return op.is_message or op.kind == "fence"
