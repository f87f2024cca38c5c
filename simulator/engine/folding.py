"""Folding, the skip-ahead rule: a few layers and micro-batches stand for all of them, exactly.

The program is lowered and simulated with K and K+1 layers and with J and J+1 micro-batches. From
these corners the time of every op, and the memory in use at it, is extrapolated linearly to the
whole program, in whole ticks and bytes. `fold_proof.py` and `overlap_proof.py` prove that the
result is the whole program's own timing. Where the proof fails, because the step is not yet in its
steady state, K and J grow, up to the whole program: the answer is always exact.

Cost: up to four simulations of some 12 layers and 4 micro-batches, and the proof, whose arrays have
one entry per op and predecessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from simulator.attribution.breakdown import breakdown, last_to_end
from simulator.costs.analytic import ComputeCosts
from simulator.engine.fold_proof import (
    FoldedTimes,
    RepeatAxis,
    layer_axis,
    micro_batch_axis,
)
from simulator.engine.op_position import Cut, Fold, copies_in, places_in, positions_of
from simulator.engine.overlap_proof import OpTimes, overlaps_repeat
from simulator.engine.simulate import SimulatedOps, simulate_ops
from simulator.engine.stream_graph import graph_of
from simulator.ranks.classes import Fabric, RankClasses, classes_of, until_consistent
from simulator.result import StepResult
from workload.gpt import GPT
from workload.lowering import lower, lower_again
from workload.lowering.recompute import layers_are_alike
from workload.memory import MemoryUse, use_of
from workload.op import HOST, ROLES, Op
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import NO_HABITS, Habits
from workload.plan import Plan
from workload.program import Program
from workload.sizes.arrays import Indices, Values
from workload.structure import Structure

LAYERS, MICRO_BATCHES = 12, 4  # the fewest whose ends may be unlike the parts beside the cut
GROWTH = 4  # steps that want more layers than these mostly want all


def simulate_step(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    *,
    fold: bool = True,
    forms: Forms = PLAIN,
    habits: Habits = NO_HABITS,
) -> StepResult:
    """Simulate a step, folded as far as that is exact, or without folding at all."""
    whole = _WholeStep(gpt, plan, forms, habits)
    smallest = whole.program(1, 1)
    return until_consistent(
        lambda contended: classes_of([smallest], fabric, contended=contended),
        lambda network: _simulated(whole, costs, network, fold=fold),
    )


def step_bytes(gpt: GPT, plan: Plan) -> int:
    """What a device of a plan without a pipeline has in memory at most, to the byte, before
    anything is known of its time."""
    whole, kept = _WholeStep(gpt, plan, PLAIN), (LAYERS, MICRO_BATCHES)
    while (memory := _memory(_Corners(whole, whole.fold(*kept)))) is None:
        kept = _grown(gpt, *kept)
    return memory.total_bytes


@dataclass(frozen=True)
class _WholeStep:
    """The whole step, and its programs with fewer layers and micro-batches."""

    gpt: GPT
    plan: Plan
    forms: Forms
    habits: Habits = NO_HABITS
    known: dict[tuple[int, int], Program] = field(default_factory=dict, compare=False, repr=False)

    def fold(self, layers: int, micro_batches: int) -> Fold:
        """The fold that keeps so many of its parts, or all that there are."""
        return Fold(_cut(layers, self.gpt.layers), _cut(micro_batches, self.plan.micro_batches))

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


def _simulated(
    whole: _WholeStep, costs: ComputeCosts, network: RankClasses, *, fold: bool
) -> StepResult:
    kept = whole.gpt.layers, whole.plan.micro_batches
    if fold:
        kept = _enough_layers(whole, costs, network), MICRO_BATCHES
    memory = None
    while True:
        corners = _Corners(whole, whole.fold(*kept))
        memory = memory or _memory(corners)
        parts_ticks = _parts_ticks(corners, costs, network)
        if memory is not None and parts_ticks is not None:
            return _step(corners, len(network.ranks), parts_ticks, memory)
        kept = _grown(whole.gpt, *kept)


def _enough_layers(whole: _WholeStep, costs: ComputeCosts, network: RankClasses) -> int:
    """How many layers to start with: as many as a step of two micro-batches needs to be proven.

    All layers where some are recomputed and others are not, since none then stands for the others.
    """
    plan, every = whole.plan, whole.gpt.layers
    two = replace(whole, plan=plan.with_micro_batches(2))
    layers = LAYERS if layers_are_alike(plan, every) else every
    if plan.micro_batches > 2:
        while two.fold(layers, 2).layers.omitted:
            corners = _Corners(two, two.fold(layers, 2))
            if _parts_ticks(corners, costs, network) is not None:
                break
            layers *= GROWTH
    return layers


def _grown(gpt: GPT, layers: int, micro_batches: int) -> tuple[int, int]:
    """The next folded program to try: first with more layers, then with more micro-batches too."""
    if _cut(layers, gpt.layers).omitted:
        return GROWTH * layers, micro_batches
    return layers, 3 * micro_batches // 2


def _cut(kept: int, whole: int) -> Cut:
    """Keep so many parts, or all of them where the two folded programs would be the larger."""
    return Cut(kept, whole) if 2 * kept + 1 < whole else Cut(whole, whole)


@dataclass(frozen=True)
class _Corners:
    """The folded program, and those with one more layer and one more micro-batch."""

    whole: _WholeStep
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


def _parts_ticks(
    corners: _Corners, costs: ComputeCosts, network: RankClasses
) -> dict[str, int] | None:
    """Where the time of the whole step goes, or None where the corners do not determine it."""
    runs = [
        simulate_ops(program, costs, network, ops)
        for program, ops in zip(corners.programs, corners.ops, strict=True)
    ]
    whole = _folded_times(corners, network, runs)
    if len(runs) > 1 and not _is_proven(corners, runs, whole):
        return None
    parts = breakdown(whole, last_to_end(whole), corners.copies)
    if sum(parts.values()) != whole.end.max():
        return None
    return parts


def _is_proven(corners: _Corners, runs: Sequence[SimulatedOps], whole: FoldedTimes) -> bool:
    """Whether ops start when they may, and last as long as in the simulation, in all parts."""
    durations = runs[0].end - runs[0].start
    if not ((whole.end - whole.start == durations).all() and whole.is_exact()):
        return False
    if not graph_of(whole.program.outline).can_overlap:
        return True
    deep = OpTimes(
        corners.extrapolated([run.start for run in runs], deep_only=True),
        corners.extrapolated([run.end for run in runs], deep_only=True),
    )
    folded, deep_and_long = OpTimes(runs[0].start, runs[0].end), OpTimes(whole.start, whole.end)
    axes = corners.layers, corners.micro_batches
    return overlaps_repeat(whole.program.ops, axes, (folded, deep, deep_and_long))


def _folded_times(
    corners: _Corners, network: RankClasses, runs: Sequence[SimulatedOps]
) -> FoldedTimes:
    start = corners.extrapolated([run.start for run in runs])
    end = corners.extrapolated([run.end for run in runs])
    program = corners.programs[0]
    return FoldedTimes(program, network, corners.layers, corners.micro_batches, start, end)


def _step(
    corners: _Corners, rank_classes: int, parts_ticks: dict[str, int], memory: MemoryUse
) -> StepResult:
    ranks = corners.whole.plan.grid.ranks
    comm_bytes: dict[str, int] = {}
    model = recomputed = count = 0
    for op, copies in zip(corners.ops[0], corners.copies, strict=True):
        count += copies
        if op.communicates:
            comm_bytes[op.time_key] = comm_bytes.get(op.time_key, 0) + copies * op.nbytes
        flops = copies * (op.flops * ranks // op.replicas)
        if op.is_recomputed:
            recomputed += flops
        else:
            model += flops
    return StepResult(
        parts_ticks=parts_ticks,
        memory=memory,
        ops=count,
        comm_bytes=comm_bytes,
        model_flops=model,
        hardware_flops=model + recomputed,
        rank_classes=rank_classes,
        layers=corners.fold.layers.kept,
        micro_batches=corners.fold.micro_batches.kept,
    )


def _memory(corners: _Corners) -> MemoryUse | None:
    """The whole program's peak: memory at an op grows evenly with layers and micro-batches, so the
    peak lies at one of the folded program's ops."""
    whole = corners.extrapolated([program.levels for program in corners.programs])
    if not (corners.layers.is_even(whole) and corners.micro_batches.is_even(whole)):
        return None
    peak = int((whole.sum(axis=0) - whole[ROLES.index(HOST)]).argmax())
    fold = corners.fold
    where = positions_of(corners.outline)[peak]
    where = fold.moved(where, fold.layers.omitted, fold.micro_batches.omitted)
    return use_of(whole[:, peak], str(where))
