"""A schedule simulated slot by slot: when each slot of each stage starts and ends.

A slot starts when the slot before it on its stage is over and what it receives has arrived. A
message leaves when its sender's slot is over and its receiver has posted the receive, as
`workload/lowering/messages.py` orders them. Where messages block, both ends stand still until they
are over, in the order of `workload/pipeline/message_order.py`. Messages are numbered: first by
direction, then by the chunk at which they arrive, then by micro-batch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from workload.pipeline.chunk_places import ChunkPlaces
from workload.pipeline.message_order import receives_first
from workload.pipeline.schedule import FORWARD, SILENT, Slot

NO_MESSAGE = -1


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """When each slot of one stage starts, ends, and lets the next one start, in ticks."""

    start: list[int]
    end: list[int]
    free: list[int]


@dataclass(frozen=True)
class SlotSchedule:
    """A schedule with durations: ticks of each stage's slots, and of messages over each link.

    `links[s]` has the ticks of an activation from stage s to the next one, and of a gradient back.
    With `overlapped` a send runs beside the next slot; with `blocking` messages run beside none, on
    neither side. Chunks are on the stages in a ring, or `in_v`.
    """

    orders: Sequence[Sequence[Slot]]
    ticks: Sequence[Sequence[int]]
    links: Sequence[tuple[int, int]]
    overlapped: bool
    micro_batches: int
    blocking: bool = False
    in_v: bool = False

    @cached_property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.orders)

    @property
    def ops_of_message(self) -> int:
        """How many ops a message is at each end: itself, and a wait for it unless it blocks."""
        return 1 if self.blocking else 2

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
        return [
            [self._message(slot, self.places.number(stage, slot.chunk), 0) for slot in order]
            for stage, order in enumerate(self.orders)
        ]

    @cached_property
    def departures(self) -> list[list[int]]:
        """For each slot of each stage the message that it sends."""
        return [
            [self._message(slot, self.places.number(stage, slot.chunk), 1) for slot in order]
            for stage, order in enumerate(self.orders)
        ]

    @cached_property
    def exchanges(self) -> list[list[list[int]]]:
        """For each stage the messages that it blocks on before each slot, and behind the last one,
        in their order."""
        return [self._exchanges(stage) for stage in range(self.stages)]

    def _exchanges(self, stage: int) -> list[list[int]]:
        order, behind = self.orders[stage], self.stages - 1 - stage
        sent, received = self.departures[stage], self.arrivals[stage]
        pairs = zip([NO_MESSAGE, *sent], [*received, NO_MESSAGE], strict=True)
        found = [[m for m in pair if m != NO_MESSAGE] for pair in pairs]
        for number, (before, slot) in enumerate(pairwise(order), 1):
            if receives_first(before, slot, behind):
                found[number].reverse()
        return found

    def is_backward(self, message: int) -> bool:
        """Whether a message is a gradient."""
        return message >= self.chunks * self.micro_batches

    def lines_of(self, messages: Sequence[int]) -> list[list[int]]:
        """Some slots' messages line by line: activations and gradients, in a V those between chunks
        in order and those between chunks that are turned round. Of each the next receive is
        posted."""
        found: dict[tuple[bool, bool], list[int]] = {}
        for message in messages:
            if message != NO_MESSAGE:
                backward, number = self._arrival(message)
                line = found.setdefault((self.places.turns_back(number), backward), [])
                line.append(message)
        return [found[line] for line in sorted(found)]

    def message_ticks(self, message: int) -> int:
        """How long a message takes, once both sides are ready."""
        backward, number = self._arrival(message)
        return self.links[self.places.link(number + backward)][backward]

    def _arrival(self, message: int) -> tuple[bool, int]:
        """Whether a message is a gradient, and the number of the chunk at which it arrives."""
        backward, number = divmod(message // self.micro_batches, self.chunks)
        return bool(backward), number

    def by_direction(self, messages: Sequence[int]) -> tuple[int, int]:
        """How many of some slots' messages are activations, and how many gradients."""
        gradients = sum(map(self.is_backward, messages))
        return len(messages) - messages.count(NO_MESSAGE) - gradients, gradients

    def _message(self, slot: Slot, number: int, further: int) -> int:
        """The message that arrives for a slot of chunk `number`, or for the same pass one chunk
        further along."""
        if slot.work in SILENT:
            return NO_MESSAGE
        if slot.work == FORWARD:
            there = number + further
            known = 0 < there < self.chunks and not self.places.meets(there)
            return there * self.micro_batches + slot.micro_batch if known else NO_MESSAGE
        there = number - further
        known = 0 <= there < self.chunks - 1 and not self.places.meets(there + 1)
        place = (self.chunks + there) * self.micro_batches + slot.micro_batch
        return place if known else NO_MESSAGE


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
        self._times = [SlotTimes([], [], []) for _ in range(schedule.stages)]

    def run(self) -> list[SlotTimes]:
        play = self._blocking_stage if self._schedule.blocking else self._stage
        runs = [play(stage) for stage in range(self._schedule.stages)]
        while self._ready:
            stage = self._ready.pop()
            message = next(runs[stage], NO_MESSAGE)
            if message != NO_MESSAGE:
                self._waiting[message] = stage
        for order, times in zip(self._schedule.orders, self._times, strict=True):
            assert len(times.end) == len(order), "a stage waits for a message that never comes"
        return self._times

    def _stage(self, stage: int) -> Generator[int, None, None]:
        """Run one stage's slots; yields each message that it has to wait for."""
        schedule, over, times = self._schedule, self.over, self._times[stage]
        arrivals, departures = schedule.arrivals[stage], schedule.departures[stage]
        posts = self._posts(arrivals)
        free, sent = 0, NO_MESSAGE
        for number, ticks in enumerate(schedule.ticks[stage]):
            start = free
            if (arrival := arrivals[number]) != NO_MESSAGE:
                if over[arrival] < 0:
                    yield arrival
                start = max(free, over[arrival])
                self._post(posts[arrival], start)
            free = end = start + ticks
            if sent != NO_MESSAGE:
                if over[sent] < 0:
                    yield sent
                free = max(free, over[sent])
            if (sent := departures[number]) != NO_MESSAGE:
                self._post(sent, free)
                if not schedule.overlapped or number + 1 == len(arrivals):
                    if over[sent] < 0:
                        yield sent
                    free, sent = max(free, over[sent]), NO_MESSAGE
            times.start.append(start)
            times.end.append(end)
            times.free.append(free)

    def _blocking_stage(self, stage: int) -> Generator[int, None, None]:
        """The same where slots and messages take turns."""
        exchanges, times, clock = self._schedule.exchanges[stage], self._times[stage], 0
        for number, ticks in enumerate([*self._schedule.ticks[stage], 0]):
            for message in exchanges[number]:
                self._post(message, clock)
                if self.over[message] < 0:
                    yield message
                clock = self.over[message]
            if number:
                times.free.append(clock)
            if number + 1 < len(exchanges):
                times.start.append(clock)
                clock += ticks
                times.end.append(clock)

    def _posts(self, arrivals: Sequence[int]) -> dict[int, int]:
        """For each message that arrives the next receive of its line, which is posted then. The
        first receive of each line is posted at the begin."""
        following: dict[int, int] = {}
        for line in self._schedule.lines_of(arrivals):
            following.update(zip(line, [*line[1:], NO_MESSAGE], strict=False))
            self._post(line[0], 0)
        return following

    def _post(self, message: int, ready: int) -> None:
        """Note that one side of a message is ready; once both are, it is sent."""
        if message == NO_MESSAGE:
            return
        if self._half[message] < 0:
            self._half[message] = ready
            return
        ticks = self._schedule.message_ticks(message)
        self.over[message] = max(self._half[message], ready) + ticks
        if message in self._waiting:
            self._ready.append(self._waiting.pop(message))
