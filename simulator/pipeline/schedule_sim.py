"""A schedule simulated slot by slot: when each slot of each stage starts and ends.

A slot starts when the slot before it on its stage is over, and the messages that the stage awaits
between the two. A message leaves when both its ends have posted it, in the order of
`workload/pipeline/message_order.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.engine.core import core
from simulator.engine.engines import MOST_TICKS, SIMPY, TOO_LONG, engine_name
from simulator.pipeline.schedule_messages import NO_MESSAGE, ScheduleMessages
from topologies.records import record
from workload.errors import PlanCannotRunError
from workload.pipeline.message_order import DEEPSPEED
from workload.pipeline.order import Order
from workload.pipeline.schedule import Slot
from workload.sizes.arrays import Indices, Ticks


@record
class SlotTimes:
    """When each slot of one stage starts and ends, and when the stage's last message is over too,
    in ticks."""

    start: Ticks
    end: Ticks
    over: int


class ScheduleTimes(NamedTuple):
    """The times of all slots by stage, and when each message is over, by its number."""

    stages: list[SlotTimes]
    over: Ticks


@record(slots=False)
class SlotSchedule:
    """A schedule with durations: ticks of each stage's slots, and of messages over each link.

    `links[s]` has the ticks of an activation from stage s to the next one, and of a gradient back.
    Where passes are paired the first slot of a pair takes the time of all of it.
    """

    shared: ScheduleMessages
    ticks: Sequence[Ticks]
    links: Sequence[tuple[int, int]]

    @property
    def orders(self) -> Sequence[Order]:
        """The slots of each stage in their order."""
        return self.shared.orders

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return self.shared.stages

    @property
    def ops_of_message(self) -> int:
        """How many ops a message is at each end: itself, and a wait for it unless it stands among
        the ops of compute."""
        return 1 if self.shared.how == DEEPSPEED else 2

    @cached_property
    def message_ticks(self) -> Ticks:
        """How long a message takes once both sides are ready, by its direction and the chunk at
        which it arrives."""
        places, chunks = self.shared.places, self.shared.chunks
        return np.array(
            [
                self.links[places.link(number + backward)][backward]
                if places.has_message(number + backward)
                else 0
                for backward in (0, 1)
                for number in range(chunks)
            ],
            dtype=np.int64,
        )

    def ticks_of(self, message: int) -> int:
        """How long a message takes."""
        return int(self.message_ticks[message // self.shared.micro_batches])

    def by_direction(self, messages: Indices) -> tuple[int, int]:
        """How many of some slots' messages are activations, and how many gradients."""
        gradients = int(self.shared.is_backward(messages).sum())
        return int((messages != NO_MESSAGE).sum()) - gradients, gradients


def schedule_of(
    orders: Sequence[Sequence[Slot]],
    ticks: Sequence[Sequence[int]],
    links: Sequence[tuple[int, int]],
    messages: str,
    micro_batches: int,
    *,
    in_v: bool = False,
    paired: bool = False,
) -> SlotSchedule:
    """A schedule of any orders of slots. `messages` is the order of messages, by its name; chunks
    are on the stages in a ring, or `in_v`."""
    columns = [Order.of(order) for order in orders]
    shared = ScheduleMessages(columns, messages, micro_batches, in_v, paired)
    return SlotSchedule(shared, [np.array(own, dtype=np.int64) for own in ticks], links)


def simulate_schedule(schedule: SlotSchedule) -> ScheduleTimes:
    """The times of all slots of all stages; a PlanCannotRunError says that they are too long."""
    if engine_name() == SIMPY:
        return _ScheduleRun(schedule).run()
    shared = schedule.shared
    stage_gaps, gap_offsets, steps = shared.meetings
    ticks = np.concatenate([each for own in schedule.ticks for each in (own, [0])])
    start, end = (np.empty(len(ticks), dtype=np.int64) for _ in range(2))
    over = np.empty(2 * shared.chunks * shared.micro_batches, dtype=np.int64)
    how = gap_offsets, steps, ticks, stage_gaps, schedule.message_ticks
    try:
        core.schedule(shared.micro_batches, *how, start, end, over)
    except OverflowError as error:
        raise PlanCannotRunError(TOO_LONG) from error
    bounds = stage_gaps.tolist()
    every = [
        SlotTimes(start[first : last - 1], end[first : last - 1], int(end[last - 1]))
        for first, last in pairwise(bounds)
    ]
    return ScheduleTimes(every, over)


class _ScheduleRun:
    """Stages, each of which runs until it needs a message whose end is not yet known: the twin of
    `schedule` in `core.c`."""

    def __init__(self, schedule: SlotSchedule) -> None:
        self._schedule = schedule
        count = 2 * schedule.shared.chunks * schedule.shared.micro_batches
        self._half = [-1] * count
        self.over = [-1] * count
        self._waiting: dict[int, int] = {}
        self._ready = list(range(schedule.stages))
        self._times: dict[int, SlotTimes] = {}

    def run(self) -> ScheduleTimes:
        stages = range(self._schedule.stages)
        runs = [self._stage(stage) for stage in stages]
        while self._ready:
            stage = self._ready.pop()
            message = next(runs[stage], NO_MESSAGE)
            if message != NO_MESSAGE:
                self._waiting[message] = stage
        assert len(self._times) == len(runs), "a stage waits for a message that never comes"
        if max(times.over for times in self._times.values()) > MOST_TICKS:
            raise PlanCannotRunError(TOO_LONG)
        every = [self._times[stage] for stage in stages]
        return ScheduleTimes(every, np.array(self.over, dtype=np.int64))

    def _stage(self, stage: int) -> Generator[int, None, None]:
        """Run one stage's slots; yields each message that it has to wait for."""
        half, over, clock = self._half, self.over, 0
        start, end = list[int](), list[int]()
        gaps = self._schedule.shared.meetings.of_stage(stage)
        for gap, ticks in zip(gaps, [*self._schedule.ticks[stage].tolist(), 0], strict=True):
            for message, posts in gap:
                if posts:
                    if half[message] < 0:  # the other side is not ready yet
                        half[message] = clock
                    else:
                        self._send(message, clock)
                    continue
                if over[message] < 0:
                    yield message
                clock = max(clock, over[message])
            start.append(clock)
            clock += ticks
            end.append(clock)
        try:
            starts, ends = (np.array(each[:-1], dtype=np.int64) for each in (start, end))
        except OverflowError as error:
            raise PlanCannotRunError(TOO_LONG) from error
        self._times[stage] = SlotTimes(starts, ends, clock)

    def _send(self, message: int, ready: int) -> None:
        """Send a message, the later side of which is ready now."""
        ticks = self._schedule.ticks_of(message)
        self.over[message] = max(self._half[message], ready) + ticks
        if message in self._waiting:
            self._ready.append(self._waiting.pop(message))


def busiest_stage(schedule: SlotSchedule) -> int:
    """The stage whose slots take longest in all, the first of such: its time is broken down."""
    return max(
        range(schedule.stages), key=lambda number: (int(schedule.ticks[number].sum()), -number)
    )
