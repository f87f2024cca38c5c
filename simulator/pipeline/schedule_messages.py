"""The messages of a schedule: which slots wait for which, and when each is posted and awaited.

They follow from the orders of slots alone, whatever these take, so that plans with the same orders
share them within a session. Messages are numbered: first by direction, then by the chunk at which
they arrive, then by micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topologies.session import session_cached
from workload.pipeline.chunk_places import ChunkPlaces
from workload.pipeline.message_order import RECEIVE, STEPS, Gaps, StageLine
from workload.pipeline.order import Order
from workload.pipeline.schedule import FORWARD, OPPOSED, SILENT
from workload.sizes.arrays import Counts, Flags, Indices
from workload.stages import Shape, order_of

NO_MESSAGE = -1


class Meetings(NamedTuple):
    """The messages that stages post or await in the gaps before their slots, and behind the last.

    Gaps are those of all stages one behind another, those of a stage from `stage_gaps` on, its
    steps from `gap_offsets` on; a step is twice its message, and one more where it posts it.
    """

    stage_gaps: Indices
    gap_offsets: Indices
    steps: Indices

    def of_stage(self, stage: int) -> list[list[tuple[int, bool]]]:
        """A stage's messages by gap, and whether it posts them."""
        first, last = self.stage_gaps[stage : stage + 2].tolist()
        bounds = self.gap_offsets[first : last + 1].tolist()
        each = [(step >> 1, bool(step & 1)) for step in self.steps[bounds[0] : bounds[-1]].tolist()]
        return [each[begin - bounds[0] : end - bounds[0]] for begin, end in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class ScheduleMessages:
    """The messages between the stages of some orders of slots; `how` is the order of messages, by
    its name. See `SlotSchedule`."""

    orders: Sequence[Order]
    how: str
    micro_batches: int
    in_v: bool
    paired: bool
    _moved: dict[tuple[int, str], Counts] = field(default_factory=dict, repr=False)

    @cached_property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.orders)

    @cached_property
    def chunks(self) -> int:
        """How many chunks the model has."""
        return self.stages * self.places.chunks

    @cached_property
    def places(self) -> ChunkPlaces:
        """On which stages the chunks are."""
        chunks = 1 + int(self.orders[0].chunk.max())
        return ChunkPlaces(self.stages, chunks, self.in_v)

    @cached_property
    def arrivals(self) -> list[Indices]:
        """For each slot of each stage the message that it waits for."""
        return [self._messages(stage, 0) for stage in range(self.stages)]

    @cached_property
    def departures(self) -> list[Indices]:
        """For each slot of each stage the message that it sends."""
        return [self._messages(stage, 1) for stage in range(self.stages)]

    @cached_property
    def gaps(self) -> list[Gaps]:
        """For each stage the steps of its messages in the gap before each slot, and behind the last
        one."""
        return [self._line(stage).gaps(self.how) for stage in range(self.stages)]

    @cached_property
    def meetings(self) -> Meetings:
        """The steps of all stages' messages by gap, with the messages' numbers."""
        counts = np.concatenate([np.diff(gaps.offsets) for gaps in self.gaps])
        steps = []
        for gaps, comes, leaves in zip(self.gaps, self.arrivals, self.departures, strict=True):
            message = np.where(gaps.comes, comes[gaps.place], leaves[gaps.place])
            steps.append(2 * message + gaps.posts)
        stage_gaps = np.cumsum([0, *(len(gaps.offsets) - 1 for gaps in self.gaps)])
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Meetings(stage_gaps, offsets, np.concatenate(steps))

    def moved(self, stage: int, what: str) -> Counts:
        """How many activations and how many gradients there is such a step for in each gap of a
        stage, and behind the last slot, (2, gaps)."""
        if (stage, what) not in self._moved:
            gaps = self.gaps[stage]
            own = gaps.what == STEPS.index(what)
            numbers = (self.arrivals if what == RECEIVE else self.departures)[stage]
            backward = self.is_backward(numbers[gaps.place[own]]).astype(np.int64)
            found = np.zeros((2, len(gaps.offsets) - 1), dtype=np.int64)
            np.add.at(found, (backward, gaps.gap[own]), 1)
            self._moved[stage, what] = found
        return self._moved[stage, what]

    def is_backward(self, message: Indices) -> Flags:
        """Which messages are gradients."""
        return message >= self.chunks * self.micro_batches

    def _line(self, stage: int) -> StageLine:
        ends = self.arrivals[stage], self.departures[stage]
        receives, sends = (messages != NO_MESSAGE for messages in ends)
        order, places = self.orders[stage], self.places
        turned = np.array([places.turns_back(number) for number in places.numbers(stage)])
        about = order, receives, sends, turned[order.chunk]
        return StageLine(*about, stage, self.stages, self.paired)

    def _messages(self, stage: int, further: int) -> Indices:
        """The messages that arrive for the slots of a stage, or for the same passes one chunk
        further along."""
        order, places = self.orders[stage], self.places
        number = np.array(places.numbers(stage))[order.chunk]
        there = number + np.where(order.is_of(FORWARD), further, 1 - further)
        known = [places.has_message(each) for each in range(self.chunks + 1)]
        found = np.where(order.is_of(FORWARD), there, self.chunks + there - 1)
        has = np.array(known)[there] & ~order.is_of(*SILENT)
        return np.where(has, found * self.micro_batches + order.micro_batch, NO_MESSAGE)


@session_cached(8)
def messages_of(shape: Shape, how: str) -> ScheduleMessages:
    """The messages of a plan's schedule, in that order."""
    orders = [order_of(shape, stage) for stage in range(shape.stages)]
    count = shape.passes * shape.micro_batches
    return ScheduleMessages(orders, how, count, shape.schedule in OPPOSED, shape.paired)
