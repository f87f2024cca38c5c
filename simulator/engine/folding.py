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
from dataclasses import replace

from simulator.attribution.breakdown import breakdown, last_to_end
from simulator.costs.analytic import ComputeCosts
from simulator.engine.corners import Corners, WholeStep, cut
from simulator.engine.fold_proof import (
    FoldedTimes,
)
from simulator.engine.op_position import positions_of
from simulator.engine.overlap_proof import OpTimes, overlaps_repeat
from simulator.engine.simulate import SimulatedOps, simulate_ops
from simulator.engine.stream_graph import graph_of
from simulator.ranks.classes import Fabric, RankClasses, classes_of, until_consistent
from simulator.result import StepResult
from workload.gpt import GPT
from workload.lowering.recompute import layers_are_alike
from workload.memory import MemoryUse, use_of
from workload.op import HOST, ROLES
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import NO_HABITS, Habits
from workload.plan import Plan

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
    whole = WholeStep(gpt, plan, forms, habits)
    smallest = whole.program(1, 1)
    return until_consistent(
        lambda contended: classes_of([smallest], fabric, contended=contended),
        lambda network: _simulated(whole, costs, network, fold=fold),
    )


def step_bytes(gpt: GPT, plan: Plan) -> int:
    """What a device of a plan without a pipeline has in memory at most, to the byte, before
    anything is known of its time."""
    whole, kept = WholeStep(gpt, plan, PLAIN), (LAYERS, MICRO_BATCHES)
    while (memory := _memory(Corners(whole, whole.fold(*kept)))) is None:
        kept = _grown(gpt, *kept)
    return memory.total_bytes


def _simulated(
    whole: WholeStep, costs: ComputeCosts, network: RankClasses, *, fold: bool
) -> StepResult:
    kept = whole.gpt.layers, whole.plan.micro_batches
    if fold:
        kept = _enough_layers(whole, costs, network), MICRO_BATCHES
    memory = None
    while True:
        corners = Corners(whole, whole.fold(*kept))
        memory = memory or _memory(corners)
        parts_ticks = _parts_ticks(corners, costs, network)
        if memory is not None and parts_ticks is not None:
            return _step(corners, len(network.ranks), parts_ticks, memory)
        kept = _grown(whole.gpt, *kept)


def _enough_layers(whole: WholeStep, costs: ComputeCosts, network: RankClasses) -> int:
    """How many layers to start with: as many as a step of two micro-batches needs to be proven.

    All layers where some are recomputed and others are not, since none then stands for the others.
    """
    plan, every = whole.plan, whole.gpt.layers
    two = replace(whole, plan=plan.with_micro_batches(2))
    layers = LAYERS if layers_are_alike(plan, every) else every
    if plan.micro_batches > 2:
        while two.fold(layers, 2).layers.omitted:
            corners = Corners(two, two.fold(layers, 2))
            if _parts_ticks(corners, costs, network) is not None:
                break
            layers *= GROWTH
    return layers


def _grown(gpt: GPT, layers: int, micro_batches: int) -> tuple[int, int]:
    """The next folded program to try: first with more layers, then with more micro-batches too."""
    if cut(layers, gpt.layers).omitted:
        return GROWTH * layers, micro_batches
    return layers, 3 * micro_batches // 2


def _parts_ticks(
    corners: Corners, costs: ComputeCosts, network: RankClasses
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


def _is_proven(corners: Corners, runs: Sequence[SimulatedOps], whole: FoldedTimes) -> bool:
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
    corners: Corners, network: RankClasses, runs: Sequence[SimulatedOps]
) -> FoldedTimes:
    start = corners.extrapolated([run.start for run in runs])
    end = corners.extrapolated([run.end for run in runs])
    program = corners.programs[0]
    return FoldedTimes(program, network, corners.layers, corners.micro_batches, start, end)


def _step(
    corners: Corners, rank_classes: int, parts_ticks: dict[str, int], memory: MemoryUse
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


def _memory(corners: Corners) -> MemoryUse | None:
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
