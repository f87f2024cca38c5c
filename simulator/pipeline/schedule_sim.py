"""A schedule simulated slot by slot: when each slot of each stage starts and ends.

A slot starts when the slot before it on its stage is over, and the messages that the stage awaits
between the two. A message leaves when both its ends have posted it, in the order of
`workload/pipeline/message_order.py`. Messages are numbered: first by direction, then by the chunk
at which they arrive, then by micro-batch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.pipeline.schedule_messages import (
    NO_MESSAGE,
    Meeting,
    ScheduleMessages,
    messages_between,
)
from workload.pipeline.chunk_places import ChunkPlaces
from workload.pipeline.message_order import DEEPSPEED, Gaps
from workload.pipeline.schedule import Slot


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """When each slot of one stage starts and ends, and when the stage's last message is over too,
    in ticks."""

    start: list[int]
    end: list[int]
    over: int


@dataclass(frozen=True)
class SlotSchedule:
    """A schedule with durations: ticks of each stage's slots, and of messages over each link.

    `links[s]` has the ticks of an activation from stage s to the next one, and of a gradient back.
    `messages` is the order of messages, by its name. Chunks are on the stages in a ring, or `in_v`.
    Where passes are `paired` the first slot of a pair takes the time of all of it.
    """

    orders: Sequence[Sequence[Slot]]
    ticks: Sequence[Sequence[int]]
    links: Sequence[tuple[int, int]]
    messages: str
    micro_batches: int
    in_v: bool = False
    paired: bool = False

    @cached_property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.orders)

    @property
    def ops_of_message(self) -> int:
        """How many ops a message is at each end: itself, and a wait for it unless it stands among
        the ops of compute."""
        return 1 if self.messages == DEEPSPEED else 2

    @cached_property
    def shared(self) -> ScheduleMessages:
        """Its messages, which other schedules of the same orders share."""
        how = {"in_v": self.in_v, "paired": self.paired}
        return messages_between(self.orders, self.messages, self.micro_batches, **how)

    @property
    def chunks(self) -> int:
        """How many chunks the model has."""
        return self.shared.chunks

    @property
    def places(self) -> ChunkPlaces:
        """On which stages the chunks are."""
        return self.shared.places

    @property
    def arrivals(self) -> list[list[int]]:
        """For each slot of each stage the message that it waits for."""
        return self.shared.arrivals

    @property
    def departures(self) -> list[list[int]]:
        """For each slot of each stage the message that it sends."""
        return self.shared.departures

    @property
    def gaps(self) -> list[Gaps]:
        """For each stage the steps of its messages in the gap before each slot, and behind the last
        one."""
        return self.shared.gaps

    @property
    def meetings(self) -> list[list[list[Meeting]]]:
        """The same with the messages' numbers."""
        return self.shared.meetings

    def is_backward(self, message: int) -> bool:
        """Whether a message is a gradient."""
        return self.shared.is_backward(message)

    def message_ticks(self, message: int) -> int:
        """How long a message takes, once both sides are ready."""
        sort = message // self.micro_batches  # its direction, and the chunk at which it arrives
        if sort not in self._message_ticks:
            backward, number = divmod(sort, self.chunks)
            self._message_ticks[sort] = self.links[self.places.link(number + backward)][backward]
        return self._message_ticks[sort]

    @cached_property
    def _message_ticks(self) -> dict[int, int]:
        return {}

    def by_direction(self, messages: Sequence[int]) -> tuple[int, int]:
        """How many of some slots' messages are activations, and how many gradients."""
        gradients = sum(map(self.is_backward, messages))
        return len(messages) - messages.count(NO_MESSAGE) - gradients, gradients


def simulate_schedule(schedule: SlotSchedule) -> list[SlotTimes]:
    """The times of all slots of all stages."""
    return _ScheduleRun(schedule).run()


def message_ends(schedule: SlotSchedule) -> list[int]:
    """When each message of a schedule is over, by its number."""
    run = _ScheduleRun(schedule)
    run.run()
    return run.over


class _ScheduleRun:
    """Stages, each of which runs until it needs a message whose end is not yet known."""

    def __init__(self, schedule: SlotSchedule) -> None:
        self._schedule = schedule
        count = 2 * schedule.chunks * schedule.micro_batches
        self._half = [-1] * count
        self.over = [-1] * count
        self._waiting: dict[int, int] = {}
        self._ready = list(range(schedule.stages))
        self._times: dict[int, SlotTimes] = {}

    def run(self) -> list[SlotTimes]:
        stages = range(self._schedule.stages)
        runs = [self._stage(stage) for stage in stages]
        while self._ready:
            stage = self._ready.pop()
            message = next(runs[stage], NO_MESSAGE)
            if message != NO_MESSAGE:
                self._waiting[message] = stage
        assert len(self._times) == len(runs), "a stage waits for a message that never comes"
        return [self._times[stage] for stage in stages]

    def _stage(self, stage: int) -> Generator[int, None, None]:
        """Run one stage's slots; yields each message that it has to wait for."""
        half, over, clock = self._half, self.over, 0
        start, end = list[int](), list[int]()
        gaps = self._schedule.meetings[stage]
        for gap, ticks in zip(gaps, [*self._schedule.ticks[stage], 0], strict=True):
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
        self._times[stage] = SlotTimes(start[:-1], end[:-1], clock)

    def _send(self, message: int, ready: int) -> None:
        """Send a message, the later side of which is ready now."""
        ticks = self._schedule.message_ticks(message)
        self.over[message] = max(self._half[message], ready) + ticks
        if message in self._waiting:
            self._ready.append(self._waiting.pop(message))


def busiest_stage(schedule: SlotSchedule) -> int:
    """The stage whose slots take longest in all, the first of such: its time is broken down."""
    return max(range(schedule.stages), key=lambda number: (sum(schedule.ticks[number]), -number))
