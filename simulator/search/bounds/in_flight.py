"""What pipelines hold while micro-batches are in flight: lower bounds of memory for many plans.

A stage holds what the layers of every micro-batch in flight saved, and during a backward pass what
its first layer works on, whatever the overlaps: buffers of compute from the first to the last op on
the compute stream that touches them. The moments at which most is held follow from the schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import add, le, sub

import numpy as np

from simulator.search.bounds.batched_programs import BatchedProgram
from simulator.search.bounds.layer_kinds import is_own_layer, kind_of, names_of
from simulator.search.bounds.layouts import ChunkLayers, plain_layers
from simulator.search.bounds.peak_memory import ADDITIONS, memory
from simulator.search.bounds.stream_bound import SCHEDULES, Entries
from simulator.search.space import Space
from topologies.session import session_cached
from workload.op import (
    BACKWARD,
    COMPUTE,
    FORWARD,
    HEAD,
    HOST,
    INPUT_GRAD,
    NONE,
    RECOMPUTE,
    WEIGHT,
    WEIGHT_GRAD,
    Op,
)
from workload.pipeline.schedule import Slot, slots
from workload.pipeline.slot import INPUT
from workload.sizes.arrays import Bytes

PLAYED = ("zb-1p", "zb-2p")  # whose stages wait for what others have done
ROUNDS = 3  # of as many micro-batches as stages: behind these nothing new is held
BACK = (BACKWARD, WEIGHT)
Held = tuple[int, ...]
Moment = tuple[Held, int]


# A moment: layers of each kind in flight, and of each kind those whose input gradients are through
# and whose weights' are not; and the kind of the layer whose pass runs back, all kinds beyond it
# where it sums for gradients of weights alone, or NONE.


def entry_bytes(space: Space, some: BatchedProgram, entries: Entries) -> Bytes:
    """What each pipeline of some entries needs at least."""
    held, saved = some.noted(memory)
    if space.problem.behaviour.scatter_gather:  # a chunk may keep but a part of what it receives
        saved = {kind: some.values(0) for kind in saved}
    kinds = names_of(some.program.gpt)
    worked, kept, sums = (some.noted(each) for each in (worked_on, kept_for_weights, weight_sums))
    beside = {kind: np.maximum(worked[kind] - nbytes, 0) for kind, nbytes in saved.items()}
    summed = {kind: np.maximum(nbytes - kept[kind], 0) for kind, nbytes in sums.items()}
    found = np.zeros(len(entries.lane), dtype=np.int64)
    table = np.stack(
        [entries.pp, entries.micro_batches, entries.schedule, entries.vpp, entries.chunk]
    )
    different, which = np.unique(table, axis=1, return_inverse=True)
    for number, case in enumerate(different.T.tolist()):
        chosen = which.ravel() == number
        lane = entries.lane[chosen]
        own = [
            {kind: nbytes[lane] for kind, nbytes in each.items()}
            for each in (held, saved, kept, beside, summed)
        ]
        pp, micro_batches, schedule, vpp, chunk = case
        plain = (plain_layers(chunk),) * (pp * vpp)
        chunks = space.layouts.every[chunk].chunks if space.layouts else plain
        stages = sorted({0, 1, pp - 1, _fullest(space, pp, chunk)})
        asked = SCHEDULES[schedule], pp, micro_batches
        found[chosen] = np.maximum.reduce(
            [_stage_bytes(kinds, chunks[at::pp], at, *asked, *own) for at in stages]
        )
    return found


def _fullest(space: Space, pp: int, chunk: int) -> int:
    """The first of the fullest stages, which holds most in flight."""
    if space.layouts is None:
        return 0
    layout = space.layouts.every[chunk]
    return max(range(pp), key=lambda stage: (*layout.fullness(stage), -stage))


def _stage_bytes(
    kinds: tuple[str, ...],
    chunks: tuple[ChunkLayers, ...],
    stage: int,
    schedule: str,
    pp: int,
    micro_batches: int,
    held: Mapping[str, Bytes],
    saved: Mapping[str, Bytes],
    kept: Mapping[str, Bytes],
    beside: Mapping[str, Bytes],
    summed: Mapping[str, Bytes],
) -> Bytes:
    level: Bytes = held["embed"] if stage == 0 else held["head"] * (stage == pp - 1)
    for chunk in chunks:
        for base in chunk.bases:
            level = level + held[kinds[base]]
    ways = [np.zeros_like(level)]
    shapes = tuple(chunk.bases for chunk in chunks)
    each = [parts[kind] for parts in (saved, kept) for kind in kinds]
    more = [parts[kind] for parts in (beside, summed) for kind in kinds]
    at_head = kept[HEAD.kind] * (stage == pp - 1)
    known = moments(schedule, stage, pp, micro_batches, shapes, len(kinds))
    for counts, base in known:
        split = sum(counts[len(kinds) :])  # passes are split in one chunk alone
        own = ways[0] + split // len(shapes[0]) * at_head
        for count, nbytes in zip(counts, each, strict=True):
            own = own + count * nbytes if count else own
        ways.append(own if base == NONE else own + more[base])
    return np.asarray(level + np.maximum.reduce(ways))


@session_cached(4096)
def moments(
    schedule: str,
    stage: int,
    pp: int,
    micro_batches: int,
    chunks: tuple[tuple[int, ...], ...],
    kinds: int,
) -> tuple[Moment, ...]:
    """Moments at which a stage with chunks of these of so many kinds of layers holds much.

    Behind `ROUNDS` rounds of forward passes the same recurs, so these are looked at alone; where
    stages depend on others' progress, so many micro-batches that a start and an end have been and
    rounds between recur; of GPipe the moment behind all of them.
    """
    each = [tuple(bases.count(base) for base in range(kinds)) for bases in chunks]
    if schedule == "gpipe":
        every = (*(count * micro_batches for count in each[0]), *[0] * kinds)
        return ((every, chunks[0][-1]),)
    few = min(micro_batches, ROUNDS * pp)
    if few < micro_batches and schedule in PLAYED and stage:
        few = min(micro_batches, ROUNDS + 2 * (2 * pp + 1))  # a start, rounds that recur, an end
    order = slots(schedule, stage, pp, few, len(chunks))
    return _undominated(_played(order, chunks, each))


def _played(
    order: Sequence[Slot], chunks: tuple[tuple[int, ...], ...], each: list[Held]
) -> set[Moment]:
    left, kinds = sum(slot.work == FORWARD for slot in order), len(each[0])
    found = set[Moment]()
    held, kept = [0] * kinds, [0] * kinds  # see `Moment`
    for slot in order:
        work, own = slot.work, each[slot.chunk]
        if work == FORWARD:
            held, left = list(map(add, held, own)), left - 1
        elif work == INPUT:
            held, kept = list(map(sub, held, own)), list(map(add, kept, own))
        last = chunks[slot.chunk][-1] if work in BACK else NONE
        last += kinds * (work == WEIGHT)
        found.add(((*held, *kept), last))
        if work != FORWARD and not left:
            break
        if work == BACKWARD:
            held = list(map(sub, held, own))
        elif work == WEIGHT:
            kept = list(map(sub, kept, own))
        found.add(((*held, *kept), NONE))
    return found


def _undominated(found: set[Moment]) -> tuple[Moment, ...]:
    """Pareto-maximal moments. Of two moments, the one that has as much of everything comes first
    where most comes first, so each is compared with those that were kept alone."""
    kept = list[Moment]()
    for one in sorted(found, reverse=True):
        if not any(_is_less(one, other) for other in kept):
            kept.append(one)
    return tuple(reversed(kept))


def _is_less(one: Moment, other: Moment) -> bool:
    return one[1] in (NONE, other[1]) and all(map(le, one[0], other[0]))


def worked_on(some: BatchedProgram) -> dict[str, Bytes]:
    """Bytes that a layer of each kind works on in its backward pass, with those that it saved."""
    ops, gpt = some.program.ops, some.program.gpt
    begin, end = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
    for name, first, last in _spans(some):
        begin[first].append(name)
        end[last].append(name)
    level = {kind: some.values(0) for kind in names_of(gpt)}
    most = dict(level)
    of: dict[str, str] = {}
    for at, op in enumerate(ops):
        for name in begin[at]:
            of[name] = kind_of(op.block.part, gpt) if is_own_layer(op.block.part, gpt) else ""
            if of[name]:
                level[of[name]] = level[of[name]] + some.nbytes(name)
        if _counts(op) and is_own_layer(op.block.part, gpt):
            kind = kind_of(op.block.part, gpt)
            most[kind] = np.maximum(most[kind], level[kind])
        for name in filter(of.get, end[at]):
            level[of[name]] = level[of[name]] - some.nbytes(name)
    summed = some.noted(weight_sums)
    return {kind: np.maximum(nbytes, summed[kind]) for kind, nbytes in most.items()}


def weight_sums(some: BatchedProgram) -> dict[str, Bytes]:
    """Bytes that the largest sum for the gradient of a weight reads and writes, of a layer of each
    kind: they are there while it runs, whatever comes before it."""
    program, gpt = some.program, some.program.gpt
    most = {kind: some.values(0) for kind in names_of(gpt)}
    for op in program.ops:
        own_layer = op.block.micro_batch == 0 and is_own_layer(op.block.part, gpt)
        if op.purpose == WEIGHT_GRAD and own_layer:
            names = dict.fromkeys((*op.reads, *op.writes))
            every = (program.buffers[name] for name in names)
            own = (each for each in every if not each.persistent and each.role != HOST)
            nbytes = sum((some.nbytes(each.name) for each in own), some.values(0))
            kind = kind_of(op.block.part, gpt)
            most[kind] = np.maximum(most[kind], nbytes)
    return most


def kept_for_weights(some: BatchedProgram) -> dict[str, Bytes]:
    """Bytes of a layer of each kind and of the head that the sums for weights' gradients of a
    backward pass read: they stay until these have run. What collectives write may come anew, so
    that is not. A loss in chunks has its sums in the forward pass, where no schedule splits them
    off: a chunk's operands are gone before the next one's."""
    program, gpt = some.program, some.program.gpt
    found = {kind: some.values(0) for kind in (*names_of(gpt), HEAD.kind)}
    writer: dict[str, Op] = {}
    names = dict[str, Op]()
    for op in program.ops:
        own = is_own_layer(op.block.part, gpt) or op.block.part == HEAD
        waits = op.purpose == WEIGHT_GRAD and op.block.phase == BACKWARD
        if waits and op.block.micro_batch == 0 and own:
            names |= dict.fromkeys(op.reads, op)
        writer |= dict.fromkeys(op.writes, op)
    for name, op in names.items():
        buffer, made = program.buffers[name], writer.get(name)
        alike = made is not None and made.block.part == op.block.part and not made.is_collective
        if alike and not buffer.persistent and buffer.role != HOST:
            kind = kind_of(op.block.part, gpt)
            found[kind] = found[kind] + some.nbytes(name)
    return found


def _counts(op: Op) -> bool:
    """Whether an op of a backward pass is one that no overlap moves; of the two sums of a linear
    either may come first."""
    inside = op.block.micro_batch == 0 and op.block.phase in (RECOMPUTE, BACKWARD)
    either = op.purpose in (INPUT_GRAD, WEIGHT_GRAD)
    return inside and op.block.part.is_layer and _stays(op) and not either


def _stays(op: Op) -> bool:
    return op.stream == COMPUTE and not op.is_collective and op.kind not in ADDITIONS


def _spans(some: BatchedProgram) -> list[tuple[str, int, int]]:
    """Every buffer that is not there all the time, with the first and the last op on the compute
    stream that touches it before it is free; those of the first micro-batch."""
    program = some.program
    found, first, last = list[tuple[str, int, int]](), dict[str, int](), dict[str, int]()
    for at, (op, gone) in enumerate(zip(program.ops, program.releases, strict=True)):
        for name in (*op.reads, *op.writes):
            buffer = program.buffers[name]
            if _stays(op) and not buffer.persistent and buffer.role != HOST:
                first.setdefault(name, at)
                last[name] = at
        for name in gone:
            if name in first:
                found.append((name, first.pop(name), last.pop(name)))
    return [span for span in found if program.ops[span[1]].block.micro_batch == 0]
