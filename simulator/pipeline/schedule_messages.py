"""The messages of a schedule: which slots wait for which, and when each is posted and awaited.

They follow from the orders of slots alone, whatever these take, so that plans with the same orders
share them within a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from topologies.session import session_cached
from workload.pipeline.chunk_places import ChunkPlaces
from workload.pipeline.message_order import RECEIVE, Gaps, StageLine
from workload.pipeline.schedule import FORWARD, SILENT, Slot
from workload.sizes.arrays import Counts

NO_MESSAGE = -1
Orders = tuple[tuple[Slot, ...], ...]


class Meeting(NamedTuple):
    """A message that a stage posts, or waits for."""

    message: int
    posts: bool


@dataclass(frozen=True, eq=False)
class ScheduleMessages:
    """The messages between the stages of some orders of slots; `how` is the order of messages, by
    its name. See `SlotSchedule`."""

    orders: Orders
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
        chunks = 1 + max(slot.chunk for slot in self.orders[0])
        return ChunkPlaces(self.stages, chunks, self.in_v)

    @cached_property
    def arrivals(self) -> list[list[int]]:
        """For each slot of each stage the message that it waits for."""
        return [self._messages(stage, 0) for stage in range(self.stages)]

    @cached_property
    def departures(self) -> list[list[int]]:
        """For each slot of each stage the message that it sends."""
        return [self._messages(stage, 1) for stage in range(self.stages)]

    @cached_property
    def gaps(self) -> list[Gaps]:
        """For each stage the steps of its messages in the gap before each slot, and behind the last
        one."""
        return [self._line(stage).gaps(self.how) for stage in range(self.stages)]

    @cached_property
    def meetings(self) -> list[list[list[Meeting]]]:
        """The same with the messages' numbers."""
        return [self._meetings(stage) for stage in range(self.stages)]

    def moved(self, stage: int, what: str) -> Counts:
        """How many activations and how many gradients there is such a step for in each gap of a
        stage, and behind the last slot, (2, gaps)."""
        if (stage, what) not in self._moved:
            numbers = (self.arrivals if what == RECEIVE else self.departures)[stage]
            found = np.zeros((2, len(self.gaps[stage])), dtype=np.int64)
            for at, gap in enumerate(self.gaps[stage]):
                for step in gap:
                    if step.what == what:
                        found[int(self.is_backward(numbers[step.place])), at] += 1
            self._moved[stage, what] = found
        return self._moved[stage, what]

    def is_backward(self, message: int) -> bool:
        """Whether a message is a gradient."""
        return message >= self.chunks * self.micro_batches

    def _line(self, stage: int) -> StageLine:
        ends = self.arrivals[stage], self.departures[stage]
        receives, sends = ([each != NO_MESSAGE for each in messages] for messages in ends)
        order, places = self.orders[stage], self.places
        turned = [places.turns_back(places.number(stage, slot.chunk)) for slot in order]
        return StageLine(order, receives, sends, turned, stage, self.stages, self.paired)

    def _meetings(self, stage: int) -> list[list[Meeting]]:
        comes, leaves = self.arrivals[stage], self.departures[stage]
        return [
            [Meeting((comes if each.comes else leaves)[each.place], each.posts) for each in gap]
            for gap in self.gaps[stage]
        ]

    def _messages(self, stage: int, further: int) -> list[int]:
        number = self.places.number
        return [
            self._message(slot, number(stage, slot.chunk), further) for slot in self.orders[stage]
        ]

    def _message(self, slot: Slot, number: int, further: int) -> int:
        """The message that arrives for a slot of chunk `number`, or for the same pass one chunk
        further along."""
        if slot.work in SILENT:
            return NO_MESSAGE
        if slot.work == FORWARD:
            there = number + further
            known = self.places.has_message(there)
            return there * self.micro_batches + slot.micro_batch if known else NO_MESSAGE
        there = number - further
        known = self.places.has_message(there + 1)
        place = (self.chunks + there) * self.micro_batches + slot.micro_batch
        return place if known else NO_MESSAGE


@session_cached(8)
def messages_of(
    orders: Orders, how: str, micro_batches: int, *, in_v: bool, paired: bool
) -> ScheduleMessages:
    """The messages of some orders."""
    return ScheduleMessages(orders, how, micro_batches, in_v, paired)


def messages_between(
    orders: Sequence[Sequence[Slot]], how: str, micro_batches: int, *, in_v: bool, paired: bool
) -> ScheduleMessages:
    """The same of orders of any kind of sequence."""
    every = tuple(tuple(order) for order in orders)
    return messages_of(every, how, micro_batches, in_v=in_v, paired=paired)
