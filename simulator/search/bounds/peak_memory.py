"""Peak memory of plans without simulating them: exact for one plan, a lower bound for many."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np

from simulator.engine.whole_step import step_bytes
from simulator.pipeline.schedule_messages import ScheduleMessages, messages_of
from simulator.pipeline.stage_memory import stage_peak
from simulator.pipeline.stage_orders import StageOrders
from simulator.search.bounds.batched_programs import BatchedProgram
from simulator.search.bounds.layer_kinds import KINDS, LAYER, has_kinds, kind_of, names_of
from simulator.search.bounds.layouts import OWN, REST, Layouts, layout_of
from simulator.search.bounds.stream_bound import ALONE, FIRST, INSIDE, LAST
from topologies.session import session_cached
from workload.gpt import GPT
from workload.models.moe import has_experts
from workload.op import BACKWARD, FORWARD, HEAD, HOST, RECOMPUTE, Block, Part, layer_part
from workload.passes.matmul_forms import PLAIN
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.sizes.arrays import Bytes, Counts
from workload.stages import chunk_layers, order_of_messages, places_of, shape_of

ADDITIONS = ("accumulate", "lomo")
# Roles of weights gathered ahead, and of gradients that are not yet scattered.
PASSING = ("gathered", "workspace")
PARTS = (LAYER, *KINDS, "embed", "head")
NEVER = int(np.iinfo(np.int64).max)


def plan_bytes(gpt: GPT, plan: Plan, behaviour: StackBehaviour = PLAIN_BEHAVIOUR) -> int:
    """The peak of the worst device, with plain matmul forms."""
    count = pipeline_bytes if plan.pp > 1 else step_bytes
    return count(gpt, plan, behaviour)


def pipeline_bytes(
    gpt: GPT, plan: Plan, behaviour: StackBehaviour = PLAIN_BEHAVIOUR, room: int = NEVER
) -> int:
    """The peak of a pipeline's worst stage: that follows from the order of slots alone. Where some
    stage needs more than there is `room` for, that of the first such stage."""
    stage_orders, pp = _in_flight(gpt, plan, behaviour)
    most = 0
    for stage in _fullest_first(stage_orders):
        most = max(most, _bytes_of_stage(stage_orders, pp, stage))
        if most > room:
            break
    return most


def stage_bytes(gpt: GPT, plan: Plan, behaviour: StackBehaviour, stage: int) -> int:
    """The peak of one of a plan's stages."""
    if plan.pp == 1:
        return step_bytes(gpt, plan, behaviour)
    return _bytes_of_stage(*_in_flight(gpt, plan, behaviour), stage)


def _in_flight(
    gpt: GPT, plan: Plan, behaviour: StackBehaviour
) -> tuple[StageOrders, ScheduleMessages]:
    """A plan's stages, and their messages in the order that they have in it."""
    stage_orders = _stage_orders(gpt, _without_messages(plan), behaviour)
    return stage_orders, messages_of(shape_of(plan), order_of_messages(behaviour.messages, plan))


def _bytes_of_stage(orders: StageOrders, messages: ScheduleMessages, stage: int) -> int:
    kind, parts = orders.kind(stage), orders.parts_of(stage)
    return stage_peak(kind, parts, messages, stage, orders.plan.micro_batches).total_bytes


def _without_messages(plan: Plan) -> Plan:
    """A plan whose stages run the same slots: whether messages overlap matters between these."""
    switches = tuple(name for name in plan.training.overlap if name != "pp" or plan.in_pairs)
    return plan.changed(overlap=switches)


@session_cached(2)
def _stage_orders(gpt: GPT, plan: Plan, behaviour: StackBehaviour) -> StageOrders:
    return StageOrders(gpt, plan, PLAIN, behaviour)


def _fullest_first(stage_orders: StageOrders) -> list[int]:
    """The stages: of each kind the first, which has most in flight, those with most layers (with
    experts, where only some have) ahead of others; then the rest."""
    gpt, plan, firsts = stage_orders.gpt, stage_orders.plan, stage_orders.firsts
    layers, places = chunk_layers(gpt, plan), places_of(plan)

    def fullness(stage: int) -> tuple[bool, int, int, int]:
        own = [layer for part in places.parts(stage) for layer in layers[part]]
        with_experts = sum(has_experts(gpt, layer) for layer in own)
        return firsts[stage] == stage, with_experts, len(own), -stage

    return sorted(range(plan.pp), key=fullness, reverse=True)


def device_bytes(
    held: Mapping[str, Bytes], saved: Bytes, pp: Counts, micro_batches: Counts, layers: int
) -> Bytes:
    """What the first stage has in memory at least, when its backward passes begin, and any stage at
    any time, whatever the schedule: `layers` of the model, in chunks of any size."""
    stage = layers // pp * held["layer"]
    apart = np.maximum(held["embed"], held["head"])
    ends = np.where(pp > 1, apart, held["embed"] + held["head"])
    in_flight = np.minimum(pp, micro_batches) * (layers // pp) * saved
    return np.asarray(stage + np.maximum(ends, held["embed"] + in_flight))


def bytes_of_layouts(
    held: Mapping[str, Bytes],
    saved: Mapping[str, Bytes],
    pp: Counts,
    micro_batches: Counts,
    layouts: Layouts,
) -> Bytes:
    """`device_bytes` for layers of several kinds: the least of all layouts with so many stages,
    each as much as its first stage has, its last one, or the fullest of those between."""
    found = np.full(len(pp), NEVER, dtype=np.int64)
    for number, layout in enumerate(layouts.every):
        chosen = np.flatnonzero(pp == layout.pp)
        in_flight = np.minimum(pp, micro_batches)[chosen]
        ways = []
        for ends in (FIRST, INSIDE, LAST) if layout.pp > 1 else (ALONE,):
            counts = layouts.counts(ends, OWN) + layouts.counts(ends, REST)
            each = dict(zip(layouts.names, counts[:, number].tolist(), strict=True))
            nbytes = sum(count * held[kind][chosen] for kind, count in each.items())
            nbytes = nbytes + sum(held[part][chosen] for part in ends.parts)
            if ends.first:
                own = sum(count * saved[kind][chosen] for kind, count in each.items())
                nbytes = nbytes + in_flight * own
            ways.append(nbytes)
        found[chosen] = np.minimum(found[chosen], np.maximum.reduce(ways))
    return found


def alone_bytes(some: BatchedProgram, gpt: GPT) -> Bytes:
    """What a device without a pipeline has in memory at its worst at least, given the overlaps and
    the whole model.

    While the last layer's backward pass runs, all others hold what they saved; additions that wait
    for the end of the pass, and collectives, may come later and are left out; of several kinds of
    layers also what the base's neighbours have gathered ahead or not scattered. Source: the live
    ranges of `workload/memory.py`, with one layer's bytes for each further one.
    """
    program, level = some.program, some.values(0)
    held, saved = memory(some)
    last = layer_part(program.gpt.layers - 1)
    ends = {op.block.part for op in program.ops if kind_of(op.block.part, program.gpt) == HEAD.kind}
    parts = (FORWARD, BACKWARD, RECOMPUTE), ends
    while_saved = {Block(0, part, phase) for phase, part in product(*parts)}
    while_saved |= {Block(0, last, RECOMPUTE), Block(0, last, BACKWARD)}
    for buffer in program.buffers.values():
        if buffer.persistent and buffer.role != HOST:
            level = level + some.nbytes(buffer.name)
    peak, live, several = level, dict[str, Part](), has_kinds(gpt)
    for op, gone in zip(program.ops, program.releases, strict=True):
        for name in op.writes:
            if name not in live and not program.buffers[name].persistent:
                live[name] = op.block.part
                level = level + _on_device(some, name)
        if op.block in while_saved and op.kind not in ADDITIONS and not op.is_collective:
            others = _of_neighbours(some, live, op.block.part) if several else some.values(0)
            peak = np.maximum(peak, level - others)
        for name in gone:
            live.pop(name, None)
            level = level - _on_device(some, name)
    if not several:
        return np.asarray(peak + (gpt.layers - 1) * (held[LAYER] + saved[LAYER]))
    # Layers behind the last one of the base's last kind are through when its backward pass runs.
    for kind, count, through in _kinds_and_through(gpt):
        peak = peak + (count - 1) * held[kind] + (count - 1 - through) * saved[kind]
    return np.asarray(peak)


def _kinds_and_through(gpt: GPT) -> list[tuple[str, int, int]]:
    """Of each kind how many layers there are, and how many behind all of the base's last kind."""
    layout = layout_of(gpt, 1, 1)
    bases = layout.chunks[0].bases
    behind = bases[len(bases) - bases[::-1].index(len(layout.names) - 1) :]
    through = (behind.count(base) for base in range(len(layout.names)))
    return list(zip(layout.names, layout.kinds(0), through, strict=True))


def _of_neighbours(some: BatchedProgram, live: Mapping[str, Part], own: Part) -> Bytes:
    """What is in memory of other parts' weights that are gathered ahead, and of their gradients
    that are not yet scattered: beside a layer the base may have another part than the model."""
    names = (name for name, part in live.items() if part != own)
    others = (name for name in names if some.program.buffers[name].role in PASSING)
    return sum((_on_device(some, name) for name in others), some.values(0))


def _on_device(some: BatchedProgram, name: str) -> Bytes:
    buffer = some.program.buffers[name]
    return some.values(0) if buffer.role == HOST else some.nbytes(name)


def memory(some: BatchedProgram) -> tuple[dict[str, Bytes], dict[str, Bytes]]:
    """Bytes on the device that each part holds, and that a layer of each kind saves for its
    backward pass."""
    program, gpt = some.program, some.program.gpt
    held = {part: some.values(0) for part in PARTS}
    for buffer in program.buffers.values():
        part = kind_of(buffer.part, gpt)
        if buffer.persistent and buffer.role != HOST and part in held:
            held[part] = held[part] + some.nbytes(buffer.name)
    born: dict[str, str] = {}
    saved = {kind: some.values(0) for kind in names_of(gpt)}
    at_head = 0, HEAD.kind, FORWARD
    for op, gone in zip(program.ops, program.releases, strict=True):
        block, kind = op.block, kind_of(op.block.part, gpt)
        if block.micro_batch == 0 and kind in saved and block.phase == FORWARD:
            own = (name for name in op.writes if not program.buffers[name].persistent)
            born |= {name: born.get(name, kind) for name in own}
        elif gone and (block.micro_batch, kind, block.phase) != at_head:
            for name in filter(born.__contains__, gone):
                kind = born[name]
                saved[kind] = saved[kind] + some.nbytes(name)
    return held, saved
