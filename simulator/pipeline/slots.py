"""A schedule played slot by slot: when each slot of each stage starts, and when it is over.

A slot starts when the slot before it on its stage is over and what it receives has arrived. A
message leaves when its sender's slot is over and its receiver has posted the receive, as
`workload/lowering/messages.py` orders them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from workload.schedule import BACKWARD, FORWARD, WEIGHT, Slot

Tag = tuple[str, int, int]  # direction, the chunk's number where it arrives, micro-batch


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """When each slot of one stage starts, ends, and lets the next one start, in ticks."""

    start: list[int]
    end: list[int]
    free: list[int]


@dataclass(frozen=True)
class Pipe:
    """What is played: the stages' slots and their ticks, and the ticks of a message over each link
    (`links[s]` from stage s to the next one, or back). `overlapped` says that a send has the next
    slot's time to finish."""

    orders: Sequence[Sequence[Slot]]
    ticks: Sequence[Sequence[int]]
    links: Sequence[int]
    overlapped: bool

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.orders)

    @property
    def chunks(self) -> int:
        """How many chunks the model has."""
        return self.stages * (1 + max(slot.chunk for slot in self.orders[0]))

    def number(self, stage: int, slot: Slot) -> int:
        """The number of a slot's chunk in the model."""
        return slot.chunk * self.stages + stage

    def receives(self, stage: int, slot: Slot) -> Tag | None:
        """The message that a slot waits for."""
        number = self.number(stage, slot)
        if slot.work == FORWARD:
            return (FORWARD, number, slot.micro_batch) if number else None
        if slot.work == WEIGHT or number == self.chunks - 1:
            return None
        return BACKWARD, number, slot.micro_batch

    def sends(self, stage: int, slot: Slot) -> Tag | None:
        """The message that a slot sends."""
        number = self.number(stage, slot)
        if slot.work == FORWARD:
            return (FORWARD, number + 1, slot.micro_batch) if number < self.chunks - 1 else None
        return (
            None if slot.work == WEIGHT or not number else (BACKWARD, number - 1, slot.micro_batch)
        )


def play_slots(pipe: Pipe) -> list[SlotTimes]:
    """The times of all slots of all stages."""
    return _Play(pipe).run()


class _Play:
    """Stages that run until they need a message whose end nobody knows yet."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._half: dict[Tag, int] = {}
        self._over: dict[Tag, int] = {}
        self._waiting: dict[Tag, int] = {}
        self._ready = list(range(pipe.stages))
        self._times = [SlotTimes([], [], []) for _ in range(pipe.stages)]

    def run(self) -> list[SlotTimes]:
        lives = [self._life(stage) for stage in range(self._pipe.stages)]
        while self._ready:
            stage = self._ready.pop()
            tag = next(lives[stage], None)
            if tag is not None:
                self._waiting[tag] = stage
        for order, times in zip(self._pipe.orders, self._times, strict=True):
            assert len(times.end) == len(order), "a stage waits for a message that never comes"
        return self._times

    def _life(self, stage: int) -> Generator[Tag, None, None]:
        """One stage's slots; it yields a message's tag whenever it must wait for that."""
        pipe, over, times = self._pipe, self._over, self._times[stage]
        order, ticks = pipe.orders[stage], pipe.ticks[stage]
        arrivals = [pipe.receives(stage, slot) for slot in order]
        posts = {
            way: iter([tag for tag in arrivals if tag and tag[0] == way])
            for way in (FORWARD, BACKWARD)
        }
        for tags in posts.values():
            self._post(next(tags, None), 0, stage)
        free, sent = 0, None
        for number, slot in enumerate(order):
            start = free
            if (arrival := arrivals[number]) is not None:
                if arrival not in over:
                    yield arrival
                start = max(free, over[arrival])
                self._post(next(posts[arrival[0]], None), start, stage)
            free = end = start + ticks[number]
            if sent is not None:
                if sent not in over:
                    yield sent
                free = max(free, over[sent])
            if (sent := pipe.sends(stage, slot)) is not None:
                self._post(sent, free, stage)
                if not pipe.overlapped or number + 1 == len(order):
                    if sent not in over:
                        yield sent
                    free, sent = max(free, over[sent]), None
            times.start.append(start)
            times.end.append(end)
            times.free.append(free)

    def _post(self, tag: Tag | None, ready: int, stage: int) -> None:
        """One side of a message is ready; once both are, it is on its way."""
        if tag is None:
            return
        if tag not in self._half:
            self._half[tag] = ready
            return
        way, number, _ = tag
        link = number - 1 if way == FORWARD else number
        ticks = self._pipe.links[link % self._pipe.stages]
        self._over[tag] = max(self._half.pop(tag), ready) + ticks
        if tag in self._waiting:
            self._ready.append(self._waiting.pop(tag))
