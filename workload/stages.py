"""A plan's pipeline: layers of chunks, slots of stages, like stages, and orders of messages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from workload.errors import PlanCannotRunError
from workload.expert_loads.histogram import counts_of
from workload.gpt import GPT
from workload.models import mtp, windows
from workload.op import EMBED, HEAD, Part, layer_part
from workload.pipeline.chunk_places import ChunkPlaces
from workload.pipeline.message_order import (
    AHEAD,
    AWAITED,
    DEEPSPEED,
    INTERLEAVED,
    MEGATRON,
    OVERLAPPED,
)
from workload.pipeline.order import CODE, Order
from workload.pipeline.schedule import FORWARD, OPPOSED, TWO_WAY, slots, ways
from workload.pipeline.slot import PERTURB
from workload.plan import Plan

Kind = tuple[object, ...]


def kind_of(gpt: GPT, layer: int) -> Kind:
    """A layer's mixer, experts or one MLP, its window, and how often each of its experts is chosen:
    equal for layers that differ in their numbers alone."""
    return *windows.kind_of(gpt, layer), counts_of(gpt, layer)


def places_of(plan: Plan) -> ChunkPlaces:
    """On which stages the chunks of a plan are."""
    schedule, chunks = plan.pipeline.schedule, plan.vpp * ways(plan.pipeline.schedule)
    return ChunkPlaces(plan.pp, chunks, schedule in OPPOSED, two_way=schedule in TWO_WAY)


def chunk_layers(gpt: GPT, plan: Plan) -> list[range]:
    """The layers of each part of the model that is a chunk, in the model's order.

    A PlanCannotRunError says how layers that do not divide could be split.
    """
    counts = list(plan.pipeline.stage_layers) or _even(gpt, plan)
    if sum(counts) != gpt.layers:
        raise PlanCannotRunError(
            f"stage_layers={'+'.join(map(str, counts))} adds up to {sum(counts)} layers, "
            f"but {gpt.name} has {gpt.layers}"
        )
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def turned_parts(gpt: GPT, plan: Plan, stage: int) -> frozenset[Part]:
    """The parts of the model that a stage runs for micro-batches that enter at the last stage."""
    places, layers = places_of(plan), chunk_layers(gpt, plan)
    further = mtp.every_layer(gpt)[gpt.layers :]
    found: list[Part] = []
    for number in places.numbers(stage) if places.two_way else []:
        if places.turns_back(number):
            found += map(layer_part, layers[places.part(number)])
            found += [EMBED] * places.begins(number)
            found += [HEAD, *map(layer_part, further)] if places.ends(number) else []
    return frozenset(found)


def like_stages(gpt: GPT, plan: Plan) -> list[int]:
    """For each stage the first that holds as many layers of each kind in each chunk, in the same
    order, with experts chosen as often, and the same ends."""
    parts, places = chunk_layers(gpt, plan), places_of(plan)
    first: dict[tuple[object, ...], int] = {}
    found = []
    for stage in range(plan.pp):
        layers = tuple(
            tuple(kind_of(gpt, n) for n in parts[places.part(number)])
            for number in places.numbers(stage)
        )
        turned = places.two_way and stage >= plan.pp // 2  # so chunks are in the other order
        kind = (stage == 0, stage == plan.pp - 1, turned, layers)
        found.append(first.setdefault(kind, stage))
    return found


class Shape(NamedTuple):
    """What the orders of slots of all stages follow from: the schedule by its name, the stages and
    the chunks of each, the micro-batches and how often a step passes over them, and whether passes
    are paired."""

    schedule: str
    stages: int
    chunks: int
    micro_batches: int
    passes: int
    paired: bool


def shape_of(plan: Plan) -> Shape:
    """What a plan's orders follow from."""
    passes = plan.passes
    return Shape(
        plan.pipeline.schedule, plan.pp, plan.vpp, plan.micro_batches, passes, plan.in_pairs
    )


def stage_slots(plan: Plan, stage: int) -> Order:
    """The slots of a stage of the plan, in the order in which it runs them.

    Without backward passes they are the forward slots of each pass over the batch, behind one in
    which the stage moves its parameters.

    >>> mezo = Plan.of(batch=2, mbs=1, optimizer="mezo")
    >>> [f"{slot.work[0]}{slot.micro_batch}" for slot in stage_slots(mezo, 0)]
    ['p0', 'f0', 'f1', 'p2', 'f2', 'f3']
    """
    return order_of(shape_of(plan), stage)


def order_of(shape: Shape, stage: int) -> Order:
    """The slots of a stage of such a plan."""
    count, about = shape.micro_batches, (shape.micro_batches, shape.chunks)
    order = slots(shape.schedule, stage, shape.stages, *about, more=int(shape.paired))
    if shape.passes == 1:
        return order
    forward = order.some(order.is_of(FORWARD))
    first = np.arange(shape.passes)[:, None] * count
    passes = np.concatenate([first, first + forward.micro_batch], axis=1)
    work, chunk = np.full_like(passes, CODE[FORWARD]), np.zeros_like(passes)
    work[:, 0], chunk[:, 1:] = CODE[PERTURB], forward.chunk
    return Order(work.ravel(), chunk.ravel(), passes.ravel())


def samples(plan: Plan) -> list[int]:
    """Micro-batches that stand for all: the first overwrites gradients where others add to them,
    the last sends them on their way. Each pass over the batch has its own."""
    count = plan.micro_batches
    own = sorted({0, min(1, count - 1), count - 1})
    return [number * count + m for number in range(plan.passes) for m in own]


def _even(gpt: GPT, plan: Plan) -> list[int]:
    chunks = plan.pp * plan.vpp
    ends = 2 if plan.pipeline.ends_as_layers and chunks > 1 else 0
    each, left = divmod(gpt.layers + ends, chunks)
    if left or each < 1:
        raise PlanCannotRunError(
            f"{gpt.name}'s {gpt.layers} layers{' and two ends' if ends else ''} are not divisible "
            f"by pp*vpp={chunks} chunks; {_hint(gpt.layers, chunks, ends)}"
        )
    counts = [each] * chunks
    if ends:
        counts[0] -= 1
        counts[-1] -= 1
    return counts


def _hint(layers: int, chunks: int, ends: int) -> str:
    if layers < chunks:
        return f"at most {layers} chunks have a layer each"
    if not ends and (layers + 2) % chunks == 0:
        return "with ends_as_layers=true they do"
    return f"try stage_layers={'+'.join(map(str, nearly_even(layers, chunks)))}"


def nearly_even(layers: int, chunks: int) -> tuple[int, ...]:
    """So many layers split over chunks, the ones with one more in the middle.

    >>> nearly_even(11, 4)
    (3, 3, 3, 2)
    """
    each, more = divmod(layers, chunks)
    first = (chunks - more) // 2
    return tuple(each + (first <= number < first + more) for number in range(chunks))


def order_of_messages(framework: str, plan: Plan) -> str:
    """The order of a plan's messages of a `framework`, one of FRAMEWORKS.

    Megatron's schedules are those of 1F1B; without virtual stages none of its messages overlap, nor
    do they where passes are paired, as then nothing of the pair is left beside them.
    """
    overlapped = "pp" in plan.training.overlap and not (plan.in_pairs and framework == MEGATRON)
    if plan.in_pairs and framework == DEEPSPEED:
        raise PlanCannotRunError(
            "overlap=a2a with pp > 1 runs a forward and a backward pass at a time, which "
            "DeepSpeed's pipeline engine does not; leave a2a out or take another stack"
        )
    if not plan.has_even_turns and (framework != MEGATRON or plan.in_pairs):
        raise PlanCannotRunError(
            f"vpp={plan.vpp} needs micro-batches in multiples of pp={plan.pp}, "
            f"not {plan.micro_batches}; only Megatron-Core's schedule without overlap=a2a runs "
            "other numbers"
        )
    if framework == MEGATRON and plan.pipeline.schedule == "1f1b" and plan.passes == 1:
        if plan.vpp == 1:
            return MEGATRON
        return OVERLAPPED if overlapped else INTERLEAVED
    if framework == DEEPSPEED:
        return DEEPSPEED
    return AHEAD if overlapped else AWAITED
