"""A pipelined step on every rank: slots as in `pipeline_steps.py`, messages from rank to rank.

A message goes to the rank at the same place in the next stage, and leaves and arrives as in
`simulator/pipeline/schedule_sim.py`, of which this is the same with arrays for times. Without noise
all ranks of a stage are through with a slot at the same time, the one of the prediction.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from simulator.noise.clocks import PIPE, Arrival, Floor, RankClocks, Waited, finished
from simulator.noise.noise import Draw
from simulator.noise.pipeline_steps import Awaited, StageSteps, TailSteps
from simulator.noise.played import Played
from simulator.noise.stage_ranks import Clocks
from simulator.pipeline.schedule_messages import NO_MESSAGE
from simulator.pipeline.schedule_sim import SlotSchedule
from simulator.ranks.classes import RankClasses
from topologies.records import record
from workload.op import COMPUTE


@record(slots=False)
class Pipeline:
    """A simulated step of several stages, as all ranks execute it."""

    network: RankClasses
    schedule: SlotSchedule
    stages: Sequence[StageSteps]

    @property
    def ops(self) -> int:
        """The ops that a rank executes, as the mean of all stages."""
        each = [
            [slot.steps for slot in own.slots] + [slot.steps for slot in (*own.tails, own.ending)]
            for own in self.stages
        ]
        return sum(len(steps) for own in each for steps in own) // len(each)

    @property
    def devices(self) -> Sequence[int]:
        """One rank of each class."""
        return self.network.ranks

    def play(self, draw: Draw) -> Played:
        """Execute the step for some samples."""
        return _PipelineRun(self, draw).played()

    def stages_of(self, axes: tuple[str, ...]) -> int:
        """How many stages a group over these axes has ranks of."""
        group = self.network.groups.members[axes][0]
        return len(np.unique(self.stages[0].ranks.grid.stages()[group]))


class _PipelineRun:
    """Stages, each of which runs until it needs a message that has not been sent."""

    def __init__(self, pipeline: Pipeline, draw: Draw) -> None:
        self.pipeline, self.draw = pipeline, draw
        self.waited = Waited()
        self._ready_sides: dict[int, Clocks] = {}
        self._over: dict[int, Clocks] = {}
        self._asked: set[int] = set()
        self._waiting: dict[int, int] = {}
        self._ready = list(range(pipeline.schedule.stages))
        self._kept: list[dict[int, Clocks]] = [{} for _ in pipeline.stages]
        self._free: dict[int, Clocks] = {}

    def played(self) -> Played:
        """The step."""
        runs = [self._stage(stage) for stage in range(len(self.pipeline.stages))]
        while self._ready:
            stage = self._ready.pop()
            message = next(runs[stage], NO_MESSAGE)
            if message != NO_MESSAGE:
                self._waiting[message] = stage
        assert len(self._free) == len(runs), "a stage waits for a message that never comes"
        clocks = self._ended()
        ticks = np.max([own.last for own in clocks], axis=0)
        return Played.of(ticks, [own.stream(COMPUTE) for own in clocks], self.waited)

    def _stage(self, stage: int) -> Generator[int, None, None]:
        """Run one stage's slots; yields each message that it has to wait for."""
        own, clock = self.pipeline.stages[stage], self._zero(stage)
        kept = {tail.number for tail in (*own.tails, own.ending)}
        last = len(own.slots) - 1
        for number, gap in enumerate(self.pipeline.schedule.shared.meetings.of_stage(stage)):
            for message, posts in gap:
                if posts:
                    self._post(message, clock)
                    continue
                yield from self._arrives(message)
                waited = self.waited if number <= last else None
                clock = _later(clock, self._arrival(message), waited)
            if number in kept:
                self._kept[stage][number] = clock
            if number <= last:
                clock = self._slot(stage, number, clock, self.waited if number < last else None)
        self._free[stage] = clock

    def _zero(self, stage: int) -> Clocks:
        return np.zeros((len(self.draw.samples), len(self.pipeline.stages[stage].ranks.ranks)))

    def _arrives(self, message: int) -> Generator[int, None, None]:
        if message not in self._over:
            yield message

    def _arrival(self, message: int) -> Clocks:
        """When a message is over, which its receiver asks for and its sender."""
        if message in self._asked:
            self._asked.remove(message)
            return self._over.pop(message)
        self._asked.add(message)
        return self._over[message]

    def _post(self, message: int, ready: Clocks) -> None:
        """Note that one side of a message is ready; once both are, it is sent."""
        if message not in self._ready_sides:
            self._ready_sides[message] = ready
            return
        ticks = self.pipeline.schedule.ticks_of(message)
        self._over[message] = np.maximum(self._ready_sides.pop(message), ready) + ticks
        if message in self._waiting:
            self._ready.append(self._waiting.pop(message))

    def _slot(self, stage: int, number: int, start: Clocks, waited: Waited | None) -> Clocks:
        own = self.pipeline.stages[stage]
        slot = own.slots[number]
        clocks = RankClocks(own.ranks, start, waited)
        draw = self.draw.on(own.ranks.ranks, stage, number, len(slot.steps))
        finished(clocks.execute(slot.steps, draw))
        return np.asarray(clocks.stream(COMPUTE) + slot.slack[own.ranks.class_of])

    def _ended(self) -> list[RankClocks]:
        """What comes after all slots, of all stages at once."""
        clocks: list[RankClocks] = []
        runs = []
        for stage, own in enumerate(self.pipeline.stages):
            known = self._tails(stage)
            floors = {at: [known[what] for what in each] for at, each in own.ending.floors.items()}
            floors[own.after] = [Floor(self._free[stage], PIPE)]
            clocks.append(RankClocks(own.ranks, self._kept[stage][own.ending.number], self.waited))
            runs.append(self._executed(stage, own.ending, clocks[-1], floors))
        self._meet(runs)
        return clocks

    def _tails(self, stage: int) -> dict[Awaited, Floor]:
        """What slots leave to later ones: when it is over."""
        own = self.pipeline.stages[stage]
        known: dict[Awaited, Floor] = {}
        for tail in own.tails:
            floors = {at: [known[what] for what in each] for at, each in tail.floors.items()}
            clocks = RankClocks(own.ranks, self._kept[stage][tail.number])
            finished(self._executed(stage, tail, clocks, floors))
            for what, left in tail.left.items():
                if left is None:
                    known.pop(what, None)
                    continue
                is_stream = what == left.stream
                over = clocks.stream(left.stream) if is_stream else clocks.ends[left.place]
                known[what] = Floor(over + left.slack[own.ranks.class_of], left.key)
        return known

    def _executed(
        self, stage: int, tail: TailSteps, clocks: RankClocks, floors: dict[int, list[Floor]]
    ) -> Generator[Arrival, Clocks, None]:
        ranks = self.pipeline.stages[stage].ranks.ranks
        draw = self.draw.on(ranks, stage, tail.number, len(tail.steps))
        return clocks.execute(tail.steps, draw, floors)

    def _meet(self, runs: Sequence[Generator[Arrival, Clocks, None]]) -> None:
        """Run stages to their ends; where they meet, all go on from the latest arrival."""
        ready: list[tuple[int, Any]] = [(stage, None) for stage in range(len(runs))]
        arrived: dict[tuple[str, tuple[str, ...]], list[tuple[int, Clocks]]] = {}
        while ready:
            stage, latest = ready.pop()
            try:
                meeting, axes, clock = runs[stage].send(latest)
            except StopIteration:
                continue
            members = arrived.setdefault((meeting, axes), [])
            members.append((stage, clock))
            if len(members) == self.pipeline.stages_of(axes):
                together = np.max([each for _, each in arrived.pop((meeting, axes))], axis=0)
                ready += [(each, together) for each, _ in members]
        assert not arrived, "a stage waits for one that never comes"


def _later(clock: Clocks, until: Clocks, waited: Waited | None) -> Clocks:
    """The later of two, where waiting counts as that for other stages."""
    after = np.maximum(clock, until)
    if waited is not None:
        waited.add(PIPE, clock, after)
    return after
