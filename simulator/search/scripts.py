"""What the slots of some plans with the same program run, op by op, and what each op waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from simulator.beside import work_of
from simulator.search.bound import Ends, adds_to_tied, part_of
from simulator.search.sized import Sized
from workload.dataflow import Waits, waits
from workload.lowering import lower
from workload.op import Op
from workload.passes import overlap_slot, overlap_step
from workload.program import Program

SIZES = ("x", "y", "z", "data", "micro_batch", "batch")
STEP = "step"


@dataclass(frozen=True)
class Lowered:
    """Rows whose program, without overlaps, is lowered once for all overlaps."""

    plain: Sized

    def few(self, layers: int) -> Program:
        """The first row's program with so many layers."""
        if layers not in self._few:
            program = self.plain.program
            own: dict[str, Any] = {
                key: int(self.plain.values(getattr(program.plan, key))[0]) for key in SIZES
            }
            gpt = replace(program.gpt, layers=layers)
            self._few[layers] = lower(gpt, replace(program.plan, **own))
        return self._few[layers]

    @cached_property
    def _few(self) -> dict[int, Program]:
        return {}


@dataclass(frozen=True)
class Script:
    """The slots of some rows with these overlaps: all run the same."""

    lowered: Lowered
    overlap: tuple[str, ...]

    @cached_property
    def some(self) -> Sized:
        """The rows with their program."""
        plain = self.lowered.plain
        return replace(plain, program=overlapped(plain.program, self.overlap), rings={})

    def slots(
        self, micro_batch: int, works: tuple[str, ...], ends: Ends, layers: int
    ) -> tuple[Sequence[Op], Sequence[Waits]]:
        """The ops of a micro-batch's slots through a chunk of so many layers."""
        parts = ["layer", *ends.parts]
        every = self._ops(layers)
        ops = [
            op
            for work in works
            for op in every[micro_batch, work]
            if _part(op) in parts and not (adds_to_tied(op, self.some) and not ends.alone)
        ]
        return ops, waits(ops)

    def _ops(self, layers: int) -> Mapping[tuple[int, str], list[Op]]:
        """The ops of the first row's program of so many layers, by micro-batch and work."""
        if layers not in self._known:
            found: dict[tuple[int, str], list[Op]] = {}
            for op in overlapped(self.lowered.few(layers), self.overlap).ops:
                if op.block != STEP:
                    number = int(op.block.partition(".")[0][1:])
                    found.setdefault((number, work_of(op)), []).append(op)
            self._known[layers] = found
        return self._known[layers]

    @cached_property
    def _known(self) -> dict[int, Mapping[tuple[int, str], list[Op]]]:
        return {}


def overlapped(program: Program, overlap: tuple[str, ...]) -> Program:
    """The program of one stage, lowered without overlaps, with these: what lowering makes of it."""
    plan = replace(program.plan, overlap=overlap)
    ops: list[Op] = []
    for slot, own in groupby(program.ops, lambda op: program.slot_of.get(op.block)):
        some = list(own)
        ops += overlap_slot(some, plan) if slot is not None else some
    ops = overlap_step(ops, plan, program.buffers, program.slot_of)
    return replace(program, plan=plan, ops=tuple(ops))


def _part(op: Op) -> str:
    owner, _, rest = op.name.partition(".")
    return part_of(owner if rest.startswith("grads.") else op.block.split(".")[1])
