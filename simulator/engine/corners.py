"""The whole step, and the corners from which it is extrapolated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from simulator.engine.fold_proof import RepeatAxis, layer_axis, micro_batch_axis
from simulator.engine.op_position import Cut, Fold, copies_in, places_in
from workload.gpt import GPT
from workload.lowering import lower, lower_again
from workload.op import Op
from workload.passes.matmul_forms import Forms
from workload.passes.stack import NO_HABITS, Habits
from workload.plan import Plan
from workload.program import Program
from workload.sizes.arrays import Indices, Values
from workload.structure import Structure


@dataclass(frozen=True)
class WholeStep:
    """The whole step, and its programs with fewer layers and micro-batches."""

    gpt: GPT
    plan: Plan
    forms: Forms
    habits: Habits = NO_HABITS
    known: dict[tuple[int, int], Program] = field(default_factory=dict, compare=False, repr=False)

    def fold(self, layers: int, micro_batches: int) -> Fold:
        """The fold that keeps so many of its parts, or all that there are."""
        return Fold(cut(layers, self.gpt.layers), cut(micro_batches, self.plan.micro_batches))

    def program(self, layers: int, micro_batches: int) -> Program:
        """The same with so many layers and micro-batches."""
        if (layers, micro_batches) not in self.known:
            plan = self.plan.with_micro_batches(micro_batches)
            gpt = replace(self.gpt, layers=layers)
            if self.forms:
                program = lower(gpt, plan, forms=self.forms, habits=self.habits)
            else:
                program = lower_again(gpt, plan, habits=self.habits)
            self.known[layers, micro_batches] = program
        return self.known[layers, micro_batches]


def cut(kept: int, whole: int) -> Cut:
    """Keep so many parts, or all of them where the two folded programs would be the larger."""
    return Cut(kept, whole) if 2 * kept + 1 < whole else Cut(whole, whole)


@dataclass(frozen=True)
class Corners:
    """The folded program, and those with one more layer and one more micro-batch."""

    whole: WholeStep
    fold: Fold

    @cached_property
    def more(self) -> list[tuple[int, int]]:
        """By how many layers and micro-batches each corner exceeds the first."""
        layers = (0, 1) if self.fold.layers.omitted else (0,)
        micro_batches = (0, 1) if self.fold.micro_batches.omitted else (0,)
        return [(a, b) for a in layers for b in micro_batches]

    @cached_property
    def programs(self) -> list[Program]:
        """The corners' programs, the folded one first."""
        return [
            self.whole.program(self.fold.layers.kept + a, self.fold.micro_batches.kept + b)
            for a, b in self.more
        ]

    @property
    def outline(self) -> Structure:
        """The folded program's outline."""
        return self.programs[0].outline

    @cached_property
    def copies(self) -> list[int]:
        """How many ops of the whole program each of the folded program's stands for."""
        return copies_in(self.outline, self.fold)

    @cached_property
    def layers(self) -> RepeatAxis:
        """The omitted layers."""
        return layer_axis(self.fold.layers, self.outline)

    @cached_property
    def micro_batches(self) -> RepeatAxis:
        """The omitted micro-batches."""
        return micro_batch_axis(self.fold.micro_batches, self.outline)

    @cached_property
    def places(self) -> list[Indices]:
        """For each corner the places of the folded program's ops in it."""
        own = np.arange(len(self.programs[0].ops), dtype=np.int64)
        others = zip(self.more[1:], self.programs[1:], strict=True)
        return [own, *(places_in(self.outline, p.outline, self.fold, *more) for more, p in others)]

    @cached_property
    def ops(self) -> list[list[Op]]:
        """The corners' ops, each of the size that it has in the whole program.

        The gradient norm and the gradients' all-reduce grow with the layers.
        """
        sizes = [np.array([[op.nbytes for op in program.ops]]) for program in self.programs]
        whole = self.extrapolated(sizes)[0]
        ops = [list(program.ops) for program in self.programs]
        for index in np.flatnonzero(whole != sizes[0][0]).tolist():
            for corner, places in zip(ops, self.places, strict=True):
                place = int(places[index])
                corner[place] = replace(corner[place], nbytes=int(whole[index]))
        return ops

    def extrapolated(self, values: Sequence[Values], *, deep_only: bool = False) -> Values:
        """Values at the corners' ops, (anything, ops), to the folded ops of the whole program, or
        of the one with all layers, but with the folded one's micro-batches."""
        at = {
            more: value[:, places]
            for more, value, places in zip(self.more, values, self.places, strict=True)
        }
        first = at[0, 0]
        layer = at.get((1, 0), first) - first
        micro_batch = at.get((0, 1), first) - first
        both = at[1, 1] - at[1, 0] - at[0, 1] + first if (1, 1) in at else 0
        n, m = self.fold.layers.omitted, 0 if deep_only else self.fold.micro_batches.omitted
        return np.asarray(first + n * layer + m * micro_batch + n * m * both, dtype=np.int64)
