"""The slots on the critical path of a pipelined step, and the messages between them.

The path is walked back from the begin of a slot: to the slot before it or, where the stage waited
for a message, over the link to the end that posted it last, and on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from simulator.engine.stream_graph import PIPE
from simulator.pipeline.schedule_sim import ScheduleTimes, SlotSchedule
from topologies.records import record

Stretch = tuple[str, int, int, int]  # "slot", its stage, place and ticks; or PIPE
POSTED, AWAITED = "posted", "awaited"


class Event(NamedTuple):
    """A slot of a stage by its place, or a message by its number, as it is posted or awaited."""

    what: str
    which: int


@record(slots=False)
class SlotPath:
    """The slots of a schedule with their times, to be walked back from any slot's begin."""

    pp: SlotSchedule
    times: ScheduleTimes

    def back_from(self, stage: int, place: int) -> Iterator[Stretch]:
        """The stretches from a slot's begin back to the step's: they fill that time. The place
        behind the last slot is that of what comes after all slots."""
        number, at = self._lines[stage].index(Event("slot", place)), self._starts[stage][place]
        while number:
            number -= 1
            what, which = self._lines[stage][number]
            if what == "slot":
                begin = self._starts[stage][which]
                yield what, stage, which, at - begin
                at = begin
            elif what == AWAITED and self._clock(stage, number) < at:
                left = at - self.pp.ticks_of(which)
                yield PIPE, stage, which, at - left
                ends = sorted(self._posts[which], key=lambda end: end[0] != stage)
                stage, number = next(end for end in ends if self._clock(*end) == left)
                at = left

    def _clock(self, stage: int, number: int) -> int:
        return self._clocks[stage][number]

    @cached_property
    def _lines(self) -> list[list[Event]]:
        """For each stage its slots, and the messages that it posts and awaits between; the last
        entry stands for what comes after all slots."""
        lines = []
        for stage in range(self.pp.stages):
            gaps = self.pp.shared.meetings.of_stage(stage)
            line: list[Event] = []
            for place, gap in enumerate(gaps):
                line += [Event(POSTED if posts else AWAITED, message) for message, posts in gap]
                line.append(Event("slot", place))
            lines.append(line)
        return lines

    @cached_property
    def _starts(self) -> list[list[int]]:
        return [[*own.start.tolist(), own.over] for own in self.times.stages]

    @cached_property
    def _clocks(self) -> list[list[int]]:
        """When each stage comes to each entry of its line."""
        over, clocks = self.times.over.tolist(), []
        for times, line in zip(self.times.stages, self._lines, strict=True):
            clock, own, ends = 0, list[int](), [*times.end.tolist(), times.over]
            for what, which in line:
                own.append(clock)
                if what == "slot":
                    clock = ends[which]
                elif what == AWAITED:
                    clock = max(clock, over[which])
            clocks.append(own)
        return clocks

    @cached_property
    def _posts(self) -> dict[int, list[tuple[int, int]]]:
        """Where in their stages' lines the two ends of each message post it."""
        found: dict[int, list[tuple[int, int]]] = {}
        for stage, line in enumerate(self._lines):
            for number, (what, which) in enumerate(line):
                if what == POSTED:
                    found.setdefault(which, []).append((stage, number))
        return found
