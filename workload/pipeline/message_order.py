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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple

from workload.errors import PlanCannotRunError
from workload.pipeline.pairs import Pairs, pairs_of, units_of
from workload.pipeline.slot import BACKWARD, FORWARD, Slot
from workload.pipeline.warm_up import warm_up
from workload.plan import Plan

RECEIVE, ARRIVED, SEND, SENT = "receive", "arrived", "send", "sent"
AHEAD, AWAITED, DEEPSPEED, MEGATRON = "ahead", "awaited", "deepspeed", "megatron"
INTERLEAVED, OVERLAPPED = "megatron-interleaved", "megatron-overlapped"
HABITS = ("", DEEPSPEED, MEGATRON)  # of stacks
NOTHING = -1  # the place of no slot


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


Gaps = list[list[MessageStep]]


@dataclass(frozen=True)
class StageLine:
    """A stage's slots in their order, which of them receive and which send; `stage` of `stages`.
    `turned` are the slots of chunks on their way back to the first stage, in a V. Where passes are
    `paired` a pair receives before its first op and sends behind its last."""

    order: Sequence[Slot]
    receives: Sequence[bool]
    sends: Sequence[bool]
    turned: Sequence[bool]
    stage: int
    stages: int
    paired: bool = False

    def gaps(self, how: str) -> Gaps:
        """The steps in the gap before each slot, and behind the last one."""
        gaps = _ORDERS[how](self)
        if how in (INTERLEAVED, OVERLAPPED):
            gaps = _as_made(self, gaps)
        return [
            [step for step in gap if (self.receives if step.comes else self.sends)[step.place]]
            for gap in gaps
        ]

    @property
    def warm_up(self) -> int:
        """How many forward passes stand before the pairs of passes in 1F1B."""
        chunks = 1 + max(slot.chunk for slot in self.order)
        count = len(self.order) // (2 * chunks)
        return warm_up(self.stage, self.stages, count, chunks, more=int(self.paired))

    @property
    def units(self) -> list[range]:
        """The places in their order, those of a pair together."""
        in_v = any(self.turned)
        pairs = pairs_of(self.order, self.stage, self.stages, in_v=in_v) if self.paired else Pairs()
        return units_of(len(self.order), pairs)


def order_of_messages(habit: str, plan: Plan) -> str:
    """The order of a plan's messages under a stack with this habit, one of HABITS.

    Megatron's schedules are those of 1F1B; without virtual stages none of its messages overlap, nor
    do they where passes are paired, as then nothing of the pair is left beside them.
    """
    overlapped = "pp" in plan.overlap and not (plan.in_pairs and habit == MEGATRON)
    if plan.in_pairs and habit == DEEPSPEED:
        raise PlanCannotRunError(
            "overlap=a2a with pp > 1 runs a forward and a backward pass at a time, which "
            "DeepSpeed's pipeline engine does not; leave a2a out or take another stack"
        )
    if not plan.has_even_turns and (habit != MEGATRON or plan.in_pairs):
        raise PlanCannotRunError(
            f"vpp={plan.vpp} needs micro-batches in multiples of pp={plan.pp}, "
            f"not {plan.micro_batches}; only Megatron-Core's schedule without overlap=a2a runs "
            "other numbers"
        )
    if habit == MEGATRON and plan.schedule == "1f1b" and plan.passes == 1:
        if plan.vpp == 1:
            return MEGATRON
        return OVERLAPPED if overlapped else INTERLEAVED
    if habit == DEEPSPEED:
        return DEEPSPEED
    return AHEAD if overlapped else AWAITED


def receives_first(before: Slot, slot: Slot, stages_behind: int) -> bool:
    """Whether DeepSpeed receives what `slot` needs before it sends what the slot `before` made.

    >>> receives_first(Slot("forward", 0, 3), Slot("backward", 0, 0), 3)
    True
    >>> receives_first(Slot("backward", 0, 0), Slot("forward", 0, 4), 3)
    False
    """
    turns = before.work == FORWARD and slot.work == BACKWARD
    return turns and before.micro_batch - slot.micro_batch == stages_behind


def _ahead(line: StageLine) -> Gaps:
    return _posted_ahead(line, overlapped=True)


def _awaited(line: StageLine) -> Gaps:
    return _posted_ahead(line, overlapped=False)


def _posted_ahead(line: StageLine, *, overlapped: bool) -> Gaps:
    gaps, last = _empty(line), len(line.order)
    unfinished: list[MessageStep] = []
    ways = [
        (turned, slot.work != FORWARD) for turned, slot in zip(line.turned, line.order, strict=True)
    ]
    coming = {
        way: iter([n for n in range(last) if line.receives[n] and ways[n] == way])
        for way in sorted(set(ways))
    }
    for places in coming.values():
        gaps[0] += _next_of(places)
    for unit in line.units:
        for place in filter(line.receives.__getitem__, unit):
            gaps[unit.start] += [MessageStep(ARRIVED, place), *_next_of(coming[ways[place]])]
        sent = list(filter(line.sends.__getitem__, unit))
        gaps[unit.stop] += [*unfinished, *_steps(SEND, sent)]
        unfinished = _steps(SENT, sent)
        if not overlapped or unit.stop == last:
            gaps[unit.stop] += unfinished
            unfinished = []
    return gaps


def _next_of(places: Iterator[int]) -> list[MessageStep]:
    return [MessageStep(RECEIVE, place) for place in islice(places, 1)]


def _one_by_one(line: StageLine) -> Gaps:
    gaps, behind = _turns(line), line.stages - 1 - line.stage
    for place, (before, slot) in enumerate(pairwise(line.order), 1):
        if receives_first(before, slot, behind):
            gaps[place] = [*_awaited_receives(place), *_awaited_sends(place - 1)]
    return gaps


def _pairs(line: StageLine) -> Gaps:
    gaps = _turns(line)
    for place, (before, slot) in enumerate(pairwise(line.order), 1):
        if before.work != slot.work:
            gaps[place] = _together([place - 1], [place])
    return gaps


def _turns(line: StageLine) -> Gaps:
    """What a slot makes is sent, then what the next one needs received."""
    gaps, last = _empty(line), len(line.order)
    for place in range(last + 1):
        gaps[place] += _awaited_sends(place - 1) if place else []
        gaps[place] += _awaited_receives(place) if place < last else []
    return gaps


def _interleaved(line: StageLine) -> Gaps:
    gaps, ahead, pairs = _outside_pairs(line)
    if pairs:
        gaps[ahead] = _together([ahead - 1], [ahead, ahead + 1])
    for first in pairs:
        gaps[first + 1] = []
        there = [first + 2, first + 3] if first + 2 in pairs else [first + 2]
        gaps[first + 2] = _together([first, first + 1], there)
    return gaps


def _overlapped(line: StageLine) -> Gaps:
    gaps, ahead, pairs = _outside_pairs(line)
    if pairs:
        gaps[ahead] = [
            MessageStep(SEND, ahead - 1),
            *_steps(RECEIVE, [ahead, ahead + 1]),
            MessageStep(SENT, ahead - 1),
            MessageStep(ARRIVED, ahead),
        ]
    for first in pairs:
        more = first + 2 in pairs
        gaps[first + 1] = [
            MessageStep(SEND, first),
            *_steps(RECEIVE, [first + 2] if more else []),
            *_steps(SENT, [first - 1] if first > ahead else []),
            MessageStep(ARRIVED, first + 1),
        ]
        gaps[first + 2] = [
            MessageStep(SEND, first + 1),
            MessageStep(RECEIVE, first + 3 if more else first + 2),
            *_steps(SENT, [first] if more else [first, first + 1]),
            MessageStep(ARRIVED, first + 2),
        ]
    return gaps


def _outside_pairs(line: StageLine) -> tuple[Gaps, int, range]:
    """The steps of warm-up and end, the length of the warm-up, and the places of the forward passes
    of the pairs between. Behind a warm-up of all forward passes the first gradient is received once
    the last output has left."""
    ahead, last = line.warm_up, len(line.order)
    gaps = [_together([place - 1], [place]) for place in range(1, last)]
    gaps = [_awaited_receives(0), *gaps, _awaited_sends(last - 1)]
    if 2 * ahead == last:
        gaps[ahead] = [*_awaited_sends(ahead - 1), *_awaited_receives(ahead)]
    return gaps, ahead, range(ahead, last - ahead, 2)


def _as_made(line: StageLine, gaps: Gaps) -> Gaps:
    """The steps with what the ring's two ends receive from each other in the place of what the
    next pass needs: what the other end made as many passes before as there are stages. It is the
    same where each chunk gets as many micro-batches in turn as there are stages; where it gets
    more, a message waits here for its pass. Orders of a few sampled micro-batches stay as they are.

    Source: NVIDIA/Megatron-LM@d98e8a6, megatron/core/pipeline_parallel/schedules.py,
    forward_backward_pipelining_with_interleaving, recv_tensor_from_previous_stage.
    """
    chunks = max(slot.chunk for slot in line.order) + 1
    count = max(slot.micro_batch for slot in line.order) + 1
    if len(line.order) < 2 * chunks * count:
        return gaps
    received = dict[int, int]()
    for work, end, step in ((FORWARD, 0, 1), (BACKWARD, line.stages - 1, -1)):
        if line.stage != end:
            continue
        places = [at for at, slot in enumerate(line.order) if slot.work == work]
        of = {(line.order[at].chunk, line.order[at].micro_batch): at for at in places}
        for number, at in enumerate(places):
            made = line.order[places[number - line.stages]] if number >= line.stages else None
            own = made is not None and 0 <= made.chunk + step < chunks
            received[at] = of[made.chunk + step, made.micro_batch] if own and made else NOTHING
    return [
        [
            step._replace(place=place)
            for step in gap
            if (place := received.get(step.place, step.place) if step.comes else step.place)
            != NOTHING
        ]
        for gap in gaps
    ]


def _together(sent: Sequence[int], received: Sequence[int]) -> list[MessageStep]:
    return [
        *_steps(SEND, sent),
        *_steps(RECEIVE, received),
        *_steps(SENT, sent),
        *_steps(ARRIVED, received),
    ]


def _awaited_sends(place: int) -> list[MessageStep]:
    return _together([place], [])


def _awaited_receives(place: int) -> list[MessageStep]:
    return _together([], [place])


def _steps(what: str, places: Sequence[int]) -> list[MessageStep]:
    return [MessageStep(what, place) for place in places]


def _empty(line: StageLine) -> Gaps:
    return [[] for _ in range(len(line.order) + 1)]


_ORDERS: dict[str, Callable[[StageLine], Gaps]] = {
    AHEAD: _ahead,
    AWAITED: _awaited,
    DEEPSPEED: _one_by_one,
    MEGATRON: _pairs,
    INTERLEAVED: _interleaved,
    OVERLAPPED: _overlapped,
}
