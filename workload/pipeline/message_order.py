"""When a stage posts the messages around its slots, and when it waits for them.

An order of messages is a pure function from a stage's slots to steps, for each gap before a slot
and for the one behind the last. What holds in each:

- "ahead": the next receive of either direction is always posted, in a V of the way back too, so
  that no stage waits for a send that another, itself waiting, will not receive. A send has the next
  slot's time to finish.
- "awaited": the same, but the stage waits for a send at once.
- "deepspeed": DeepSpeed's pipeline engine performs its instructions one after another on the stream
  of compute, messages too. Between two slots it sends what the first one made, then receives what
  the second one needs. Where a backward pass follows the forward pass of the step before, and so
  the next stage has just run a backward pass too, it is the other way round: both ends then have
  the gradient first. Source: deepspeedai/DeepSpeed, deepspeed/runtime/pipe/schedule.py,
  TrainSchedule.steps; engine.py, PipelineEngine._exec_schedule; p2p.py, send and recv.
- "megatron": Megatron's 1F1B posts a message as it waits for it. Between a forward and a backward
  pass the one's output and what the other needs are on their way together; in the warm-up and at
  the end, where passes of one direction follow each other, the output leaves first.
- "megatron-interleaved": its 1F1B over virtual stages. In the warm-up and at the end an output and
  the next input are on their way together; between, four messages at once behind each pair of
  passes, and behind the warm-up the first gradient with them.
- "megatron-overlapped": the same with overlap_p2p_comm: between warm-up and end a pass's output,
  and the next input of its direction, have the other direction's pass to finish. That warm-up and
  end wait is what overlap_p2p_comm_warmup_flush would change.
  Source of all three: NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py and
  p2p_communication.py; model_parallel_config.py.

Why DeepSpeed's stages do not wait for each other: 1F1B gives stage s the forward pass of
micro-batch m in step 2 m + s and its backward pass in step 2 m + 2 stages - 1 - s. So a gradient is
received first only behind the forward pass that is as many micro-batches ahead as there are stages
behind, right one step before, and the next stage is then between a backward and a forward pass,
where it sends first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topologies.records import record
from workload.pipeline.order import CODE, Order
from workload.pipeline.pairs import pairs_of, units_of
from workload.pipeline.slot import BACKWARD, FORWARD, Slot
from workload.pipeline.warm_up import warm_up
from workload.sizes.arrays import Flags, Indices

STEPS = RECEIVE, ARRIVED, SEND, SENT = ("receive", "arrived", "send", "sent")
SENDS = STEPS.index(SEND)  # of those, the first that concerns a message that leaves
AHEAD, AWAITED, DEEPSPEED, MEGATRON = "ahead", "awaited", "deepspeed", "megatron"
INTERLEAVED, OVERLAPPED = "megatron-interleaved", "megatron-overlapped"
FRAMEWORKS = ("", DEEPSPEED, MEGATRON)  # of stacks
NOTHING = -1  # the place of no slot
Numbers = Any  # a number, or an array of them


class MessageStep(NamedTuple):
    """A message posted or awaited: what a slot receives ("receive", "arrived"), or sends ("send",
    "sent"). `place` is the slot's in its stage's order."""

    what: str
    place: int

    @property
    def posts(self) -> bool:
        """Whether the message is posted, and not awaited."""
        return self.what in (RECEIVE, SEND)

    @property
    def comes(self) -> bool:
        """Whether the message arrives here."""
        return self.what in (RECEIVE, ARRIVED)


@dataclass(frozen=True, eq=False)
class Gaps:
    """The steps in the gap before each slot of a stage, and in the one behind the last.

    `what` and `place` have a step each, those of gap g from `offsets[g]` on, in their order; `what`
    is a place in STEPS.
    """

    offsets: Indices
    what: Indices
    place: Indices

    @property
    def posts(self) -> Flags:
        """Which steps post a message; the others await one."""
        return np.isin(self.what, (STEPS.index(RECEIVE), STEPS.index(SEND)))

    @property
    def comes(self) -> Flags:
        """Which steps concern a message that arrives here."""
        return np.isin(self.what, (STEPS.index(RECEIVE), STEPS.index(ARRIVED)))

    @property
    def gap(self) -> Indices:
        """The gap of each step."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def lists(self) -> list[list[MessageStep]]:
        """The steps of each gap."""
        steps = zip(self.what.tolist(), self.place.tolist(), strict=True)
        every = [MessageStep(STEPS[what], place) for what, place in steps]
        return [every[first:last] for first, last in pairwise(self.offsets.tolist())]


class _Steps:
    """Steps on their way to be gaps: each with its gap, and its rank among those of the gap."""

    def __init__(self) -> None:
        self._parts: list[tuple[Indices, NDArray[np.float64], Indices, Indices]] = []

    def add(self, what: str, gap: Numbers, rank: Numbers, place: Numbers) -> None:
        """Add steps of one kind; each of the numbers may be one for all."""
        shape = np.broadcast_shapes(*(np.shape(each) for each in (gap, rank, place)), (1,))
        gaps, codes, places = (
            np.broadcast_to(each, shape).astype(np.int64)
            for each in (gap, STEPS.index(what), place)
        )
        self._parts.append((gaps, np.broadcast_to(rank, shape).astype(np.float64), codes, places))

    def together(self, gap: Numbers, sent: Sequence[Numbers], received: Sequence[Numbers]) -> None:
        """Add messages that are on their way together: all posted, then all awaited."""
        rank = 0
        for what, places in (
            *((SEND, sent), (RECEIVE, received)),
            *((SENT, sent), (ARRIVED, received)),
        ):
            for place in places:
                self.add(what, gap, rank, place)
                rank += 1

    def gaps(self, line: StageLine, made: Indices | None) -> Gaps:
        """The gaps of a line, with the steps of slots that do receive or send. Where `made` says
        so, what comes is not what the slot at hand needs but what another one does."""
        gap, rank, what, place = (np.concatenate(each) for each in zip(*self._parts, strict=True))
        comes = what < SENDS
        if made is not None:
            place = np.where(comes, made[place], place)
        there = np.where(comes, line.receives[place], line.sends[place]) & (place != NOTHING)
        gap, rank, what, place = (each[there] for each in (gap, rank, what, place))
        order = np.lexsort((rank, gap))
        counts = np.bincount(gap, minlength=len(line.order) + 1)
        return Gaps(np.concatenate([[0], np.cumsum(counts)]), what[order], place[order])


@record(slots=False)
class StageLine:
    """A stage's slots in their order, which of them receive and which send; `stage` of `stages`.
    `turned` are the slots of chunks on their way back to the first stage, in a V. Where passes are
    `paired` a pair receives before its first op and sends behind its last."""

    order: Order
    receives: Flags
    sends: Flags
    turned: Flags
    stage: int
    stages: int
    paired: bool = False

    def gaps(self, how: str) -> Gaps:
        """The steps in the gap before each slot, and behind the last one."""
        made = _made(self) if how in (INTERLEAVED, OVERLAPPED) else None
        return _ORDERS[how](self).gaps(self, made)

    @property
    def warm_up(self) -> int:
        """How many forward passes stand before the pairs of passes in 1F1B."""
        chunks = 1 + int(self.order.chunk.max())
        count = len(self.order) // (2 * chunks)
        return warm_up(self.stage, self.stages, count, chunks, more=int(self.paired))

    @property
    def units(self) -> tuple[Indices, Indices]:
        """The unit of each place, those of a pair together, and where each unit stops."""
        count = len(self.order)
        if not self.paired:
            return np.arange(count), np.arange(1, count + 1)
        in_v = bool(self.turned.any())
        pairs = pairs_of(self.order.slots, self.stage, self.stages, in_v=in_v)
        units = units_of(count, pairs)
        lengths = [len(unit) for unit in units]
        return np.repeat(np.arange(len(units)), lengths), np.cumsum(lengths)


def receives_first(before: Slot, slot: Slot, stages_behind: int) -> bool:
    """Whether DeepSpeed receives what `slot` needs before it sends what the slot `before` made.

    >>> receives_first(Slot("forward", 0, 3), Slot("backward", 0, 0), 3)
    True
    >>> receives_first(Slot("backward", 0, 0), Slot("forward", 0, 4), 3)
    False
    """
    turns = before.work == FORWARD and slot.work == BACKWARD
    return turns and before.micro_batch - slot.micro_batch == stages_behind


def _ahead(line: StageLine) -> _Steps:
    return _posted_ahead(line, overlapped=True)


def _awaited(line: StageLine) -> _Steps:
    return _posted_ahead(line, overlapped=False)


# Ranks within a gap, of the unit that ends there and of the one that begins behind it.
_FINISHED, _MADE, _NEEDED = 1, 2, 4


def _posted_ahead(line: StageLine, *, overlapped: bool) -> _Steps:
    steps, count = _Steps(), len(line.order)
    unit, stops = line.units
    starts = np.concatenate([[0], stops[:-1]])
    way = 2 * line.turned + (line.order.work != CODE[FORWARD])
    receives = np.flatnonzero(line.receives)
    for number, each in enumerate(sorted(set(way.tolist()))):
        coming = receives[way[receives] == each]
        steps.add(RECEIVE, 0, number / 8, coming[:1])
        if len(coming):
            # Within a unit of several slots they arrive in their order, each with the next posted.
            rank = _NEEDED + 2 * (coming - starts[unit[coming]]) / (count + 1)
            steps.add(ARRIVED, starts[unit[coming]], rank, coming)
            steps.add(RECEIVE, starts[unit[coming[:-1]]], rank[:-1] + 1 / (count + 1), coming[1:])
    sends = np.flatnonzero(line.sends)
    own, place = unit[sends], (sends + 1) / (count + 1)
    steps.add(SEND, stops[own], _MADE + place / 2, sends)
    following = np.minimum(own + 1, len(stops) - 1)
    at_once = (own == len(stops) - 1) | (not overlapped)
    rank = np.where(at_once, _MADE + 1 / 2 + place / 2, _FINISHED + place)
    steps.add(SENT, np.where(at_once, stops[own], stops[following]), rank, sends)
    return steps


def _one_by_one(line: StageLine) -> _Steps:
    behind, work, m = line.stages - 1 - line.stage, line.order.work, line.order.micro_batch
    turns = (work[:-1] == CODE[FORWARD]) & (work[1:] == CODE[BACKWARD])
    first = turns & (m[:-1] - m[1:] == behind)  # `receives_first`
    return _turns(line, np.concatenate([[0], np.where(first, -4, 0), [0]]))


def _pairs(line: StageLine) -> _Steps:
    """What a slot makes is sent, then what the next one needs received; together where the two are
    passes of both directions."""
    steps, count = _Steps(), len(line.order)
    both = np.concatenate([[False], line.order.work[1:] != line.order.work[:-1], [False]])
    place = np.arange(count + 1)
    steps.add(SEND, place[1:], 0, place[:-1])
    steps.add(SENT, place[1:], np.where(both, 2, 1)[1:], place[:-1])
    steps.add(RECEIVE, place[:-1], np.where(both, 1, 2)[:-1], place[:-1])
    steps.add(ARRIVED, place[:-1], 3, place[:-1])
    return steps


def _turns(line: StageLine, rank: Indices) -> _Steps:
    """What a slot makes is sent, then what the next one needs received, by gap of these ranks."""
    steps, place = _Steps(), np.arange(len(line.order) + 1)
    steps.add(SEND, place[1:], 0, place[:-1])
    steps.add(SENT, place[1:], 1, place[:-1])
    steps.add(RECEIVE, place[:-1], 2 + rank[:-1], place[:-1])
    steps.add(ARRIVED, place[:-1], 3 + rank[:-1], place[:-1])
    return steps


def _interleaved(line: StageLine) -> _Steps:
    steps, ahead, firsts = _outside_pairs(line)
    if len(firsts):
        steps.together(ahead, [ahead - 1], [ahead, ahead + 1])
        inner, last = firsts[:-1], firsts[-1]
        steps.together(inner + 2, [inner, inner + 1], [inner + 2, inner + 3])
        steps.together(last + 2, [last, last + 1], [last + 2])
    return steps


def _overlapped(line: StageLine) -> _Steps:
    steps, ahead, firsts = _outside_pairs(line)
    if not len(firsts):
        return steps
    for rank, (what, place) in enumerate(
        [
            *((SEND, ahead - 1), (RECEIVE, ahead), (RECEIVE, ahead + 1)),
            *((SENT, ahead - 1), (ARRIVED, ahead)),
        ]
    ):
        steps.add(what, ahead, rank, place)
    more, last = firsts[:-1], firsts[-1:]
    steps.add(SEND, firsts + 1, 0, firsts)
    steps.add(RECEIVE, more + 1, 1, more + 2)
    steps.add(SENT, firsts[1:] + 1, 2, firsts[1:] - 1)
    steps.add(ARRIVED, firsts + 1, 3, firsts + 1)
    steps.add(SEND, firsts + 2, 0, firsts + 1)
    steps.add(RECEIVE, more + 2, 1, more + 3)
    steps.add(RECEIVE, last + 2, 1, last + 2)
    steps.add(SENT, firsts + 2, 2, firsts)
    steps.add(SENT, last + 2, 3, last + 1)
    steps.add(ARRIVED, firsts + 2, 4, firsts + 2)
    return steps


def _outside_pairs(line: StageLine) -> tuple[_Steps, int, Indices]:
    """The steps of warm-up and end, the length of the warm-up, and the places of the forward passes
    of the pairs between. Behind a warm-up of all forward passes the first gradient is received once
    the last output has left."""
    steps, ahead, count = _Steps(), line.warm_up, len(line.order)
    firsts = np.arange(ahead, count - ahead, 2)
    inside = np.arange(ahead, count - ahead + 1) if len(firsts) else np.zeros(0, dtype=np.int64)
    alone = [ahead] if 2 * ahead == count else []
    outside = np.setdiff1d(np.arange(1, count), [*inside.tolist(), *alone])
    steps.together(outside, [outside - 1], [outside])
    for gap in alone:
        steps.together(gap, [gap - 1], [])
        steps.add(RECEIVE, gap, 4, gap)
        steps.add(ARRIVED, gap, 5, gap)
    steps.together(0, [], [0])
    if not len(firsts) or count - ahead != count:
        steps.together(count, [count - 1], [])
    return steps, ahead, firsts


def _made(line: StageLine) -> Indices | None:
    """By place, the slot whose message the ring's two ends receive there from each other, in the
    place of what the next pass needs: what the other end made as many passes before as there are
    stages. It is the same where each chunk gets as many micro-batches in turn as there are stages;
    where it gets more, a message waits here for its pass. None for orders of a few sampled
    micro-batches, which stay as they are.

    Source: NVIDIA/Megatron-LM@d98e8a6, megatron/core/pipeline_parallel/schedules.py,
    forward_backward_pipelining_with_interleaving, recv_tensor_from_previous_stage.
    """
    order = line.order
    chunks, count = int(order.chunk.max()) + 1, int(order.micro_batch.max()) + 1
    if len(order) < 2 * chunks * count:
        return None
    made = np.arange(len(order) + 1)
    for work, end, step in ((FORWARD, 0, 1), (BACKWARD, line.stages - 1, -1)):
        if line.stage != end:
            continue
        places = np.flatnonzero(order.is_of(work))
        at = np.full((chunks + 2, count), NOTHING, dtype=np.int64)  # a row more at either end
        at[order.chunk[places] + 1, order.micro_batch[places]] = places
        at[[0, -1]] = NOTHING
        before = places[: -line.stages]
        made[places[: line.stages]] = NOTHING
        made[places[line.stages :]] = at[order.chunk[before] + 1 + step, order.micro_batch[before]]
    return made


_ORDERS: dict[str, Callable[[StageLine], _Steps]] = {
    AHEAD: _ahead,
    AWAITED: _awaited,
    DEEPSPEED: _one_by_one,
    MEGATRON: _pairs,
    INTERLEAVED: _interleaved,
    OVERLAPPED: _overlapped,
}
