"""Peak memory of plans without simulating them: exact for one plan, a lower bound for many."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.engine.whole_step import step_bytes
from simulator.pipeline.schedule_sim import SlotSchedule
from simulator.pipeline.stage_memory import stage_peak
from simulator.pipeline.stage_orders import StageOrders
from simulator.pipeline.steady_rounds import folded_plan
from simulator.search.bounds.batched_programs import BatchedProgram
from workload.gpt import GPT
from workload.op import BACKWARD, FORWARD, HEAD, HOST, RECOMPUTE, Block, layer_part
from workload.passes.matmul_forms import PLAIN
from workload.passes.stack import NO_HABITS, Habits
from workload.pipeline.message_order import order_of_messages
from workload.pipeline.schedule import V_SHAPED
from workload.plan import Plan
from workload.sizes.arrays import Bytes, Counts

ADDITIONS = ("accumulate", "lomo")
PARTS = ("layer", "embed", "head")
FIRST = layer_part(0)
WHILE_SAVED = (
    Block(0, HEAD, FORWARD),
    Block(0, HEAD, BACKWARD),
    Block(0, FIRST, RECOMPUTE),
    Block(0, FIRST, BACKWARD),
)


def plan_bytes(gpt: GPT, plan: Plan) -> int:
    """The peak of the worst device, with plain matmul forms."""
    return pipeline_bytes(gpt, plan) if plan.pipe > 1 else step_bytes(gpt, plan)


def pipeline_bytes(gpt: GPT, plan: Plan, habits: Habits = NO_HABITS) -> int:
    """The peak of a pipeline's worst stage: that follows from the order of slots alone."""
    stage_orders = StageOrders(gpt, plan, folded_plan(plan), PLAIN, habits)
    pipe = SlotSchedule(
        orders=stage_orders.orders,
        ticks=[[0] * len(order) for order in stage_orders.orders],
        links=[(0, 0)] * plan.pipe,
        messages=order_of_messages(habits.messages, plan),
        micro_batches=stage_orders.small.micro_batches,
        in_v=plan.schedule in V_SHAPED,
    )
    peaks = (
        stage_peak(kind, pipe, stage, plan.micro_batches)
        for stage, kind in enumerate(stage_orders.kinds)
    )
    return max(use.total_bytes for use in peaks)


def device_bytes(
    held: Mapping[str, Bytes], saved: Bytes, pipe: Counts, micro_batches: Counts, layers: int
) -> Bytes:
    """What the first stage has in memory at least, when its backward passes begin, and any stage at
    any time, whatever the schedule: `layers` of the model, in chunks of any size."""
    stage = layers // pipe * held["layer"]
    apart = np.maximum(held["embed"], held["head"])
    ends = np.where(pipe > 1, apart, held["embed"] + held["head"])
    in_flight = np.minimum(pipe, micro_batches) * (layers // pipe) * saved
    return np.asarray(stage + np.maximum(ends, held["embed"] + in_flight))


def alone_bytes(some: BatchedProgram, layers: int) -> Bytes:
    """What a device without a pipeline has in memory at its worst at least, given the overlaps.

    While the last layer's backward pass runs, all others hold what they saved; additions that wait
    for the end of the pass, and collectives, may come later and are left out. Source: the live
    ranges of `workload/memory.py`, with one layer's bytes for each further one.
    """
    program, level = some.program, some.values(0)
    held, saved = memory(some)
    for buffer in program.buffers.values():
        if buffer.persistent and buffer.role != HOST:
            level = level + some.values(buffer.nbytes)
    peak, live = level, set[str]()
    for op, gone in zip(program.ops, program.releases, strict=True):
        for name in op.writes:
            if name not in live and not program.buffers[name].persistent:
                live.add(name)
                level = level + _on_device(some, name)
        if op.block in WHILE_SAVED and op.kind not in ADDITIONS and not op.is_collective:
            peak = np.maximum(peak, level)
        for name in gone:
            live.discard(name)
            level = level - _on_device(some, name)
    return np.asarray(peak + (layers - 1) * (held["layer"] + saved))


def _on_device(some: BatchedProgram, name: str) -> Bytes:
    buffer = some.program.buffers[name]
    return some.values(0 if buffer.role == HOST else buffer.nbytes)


def memory(some: BatchedProgram) -> tuple[dict[str, Bytes], Bytes]:
    """Bytes on the device that each part holds, and that a layer saves for its backward pass."""
    program = some.program
    held = {part: some.values(0) for part in PARTS}
    for buffer in program.buffers.values():
        part = buffer.part.kind
        if buffer.persistent and buffer.role != HOST and part in held:
            held[part] = held[part] + some.values(buffer.nbytes)
    born: set[str] = set()
    saved = some.values(0)
    for op, gone in zip(program.ops, program.releases, strict=True):
        if op.block == Block(0, FIRST, FORWARD):
            born |= {name for name in op.writes if not program.buffers[name].persistent}
        elif op.block != Block(0, HEAD, FORWARD):
            for name in born.intersection(gone):
                saved = saved + some.values(program.buffers[name].nbytes)
    return held, saved
