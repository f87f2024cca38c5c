"""A pipelined step as all ranks execute it: each slot op by op, with what predicting it found.

`simulator/pipeline/pipeline_step.py` simulates each distinct slot by itself, the schedule with one
duration a slot, and the last slots with what follows them for all stages at once. Every rank does
the same here, and so all durations are taken from there, of all micro-batches.

Where rank classes of a stage differ, the prediction has a slot take as long as in the slowest of
them. A rank of a faster class has as much slack behind its slot as that makes without noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.engine.streams import RankTask
from simulator.noise.clocks import OpStep, op_steps
from simulator.noise.stage_ranks import Clocks, StageRanks
from simulator.pipeline.pipeline_step import PipelineRun
from simulator.pipeline.schedule_sim import SlotSchedule
from simulator.pipeline.slot_ops import SlotOps, StageKind
from topologies.records import record
from workload.op import COMPUTE
from workload.sizes.arrays import Ticks

Awaited = str | int  # a stream, or an op by its place in the stage's program


@record
class SlotSteps:
    """A slot's ops, and the slack of each class behind the last one on its compute stream."""

    steps: Sequence[OpStep]
    slack: Clocks


@record
class Left:
    """What later slots may wait for: the end of a stream, or of the op at `place`; what waiting for
    it counts as, and each class's slack behind it."""

    stream: str
    place: int
    key: str
    slack: Clocks


@record
class TailSteps:
    """Slot `number` of a stage once more, with streams that are busy from earlier slots on.

    `floors` has by op what of earlier slots it waits for, streams and places of ops in the stage's
    program, `left` what it leaves to later ones; nothing where that holds no longer.
    """

    number: int
    steps: Sequence[OpStep]
    floors: Mapping[int, Sequence[Awaited]]
    left: Mapping[Awaited, Left | None]


@record(slots=False)
class StageSteps:
    """What the ranks of a stage execute: `slots` in their order, of which those in `tails` leave
    other streams busy, and the `ending`: the last slot, and behind it what comes after all slots
    from op `after` on."""

    ranks: StageRanks
    slots: Sequence[SlotSteps]
    tails: Sequence[TailSteps]
    ending: TailSteps
    after: int


def stage_steps(run: PipelineRun) -> tuple[SlotSchedule, list[StageSteps]]:
    """The schedule and the ops of all stages."""
    schedule = run.schedule
    builders = [_Builder(run, stage) for stage in range(schedule.stages)]
    found = []
    for builder in builders:
        own = run.ends.of_stage(builder.stage)
        tasks, times = [run.ends.tasks[n] for n in own], [run.ends.times[n] for n in own]
        found.append(builder.steps(tasks, times))
    return schedule, found


class _Builder:
    """The steps of one stage on their way."""

    def __init__(self, run: PipelineRun, stage: int) -> None:
        orders = run.stage_orders
        self.run, self.stage = run, stage
        self.kind: StageKind = orders.kinds[stage]
        self.slots = run.slots[stage]

    def steps(self, tasks: Sequence[RankTask], ended: Sequence[tuple[Ticks, Ticks]]) -> StageSteps:
        """All steps, given the tasks of the stage's end and when their ops start and end."""
        grid = self.run.stage_orders.plan.grid
        order = self.run.stage_orders.orders[self.stage]
        known: set[Awaited] = set()
        ending = self.run.ending_part(self.stage)
        tails = self._tails(known, self._needed(ending))
        after = self.kind.part(order[len(order) - 1]).count
        steps = op_steps(tasks[0].graph, _durations(ended))
        floors = self._floors(ending, known)
        floors.pop(after, None)
        last = TailSteps(len(order) - 1, steps, floors, {})
        ranks = StageRanks.of(self.run.network, grid, self.stage)
        return StageSteps(ranks, self._slots(), tails, last, after)

    def _slots(self) -> list[SlotSteps]:
        each = []
        for (part, carry_ins), cost in zip(self.slots.slots, self.slots.costs, strict=True):
            tasks = self.run.tasks(self.stage, part, carry_ins)
            each.append(_slot(tasks, self.run.simulated(tasks), cost.ticks))
        return [each[number] for number in self.slots.which.tolist()]

    def _tails(self, known: set[Awaited], needed: set[int]) -> list[TailSteps]:
        """The slots before the last one that leave streams busy; `known` takes up what they
        leave."""
        found = []
        for place, part, tasks, own in self.run.earlier[self.stage].slots:
            places = self.kind.places_in_program(part).tolist()
            left = _left(tasks, own, needed, places)
            steps = _kept(op_steps(tasks[0].graph, _durations(own)), left)
            found.append(TailSteps(place, steps, self._floors(part, known), left))
            known |= {what for what, each in left.items() if each is not None}
        return found

    def _floors(self, part: SlotOps, known: set[Awaited]) -> dict[int, list[Awaited]]:
        places = self.kind.places_in_program(part).tolist()
        pairs = zip(part.ops, places, strict=True)
        every = ([op.stream, *self.kind.waits.of_one(place)] for op, place in pairs)
        found = {at: [what for what in own if what in known] for at, own in enumerate(every)}
        return {at: own for at, own in found.items() if own}

    def _needed(self, ending: SlotOps) -> set[int]:
        """All ops that ops of some slot, or of the end, wait for, by their places."""
        parts = (*(part for part, _ in self.slots.slots), ending)
        places = np.concatenate([self.kind.places_in_program(part) for part in parts])
        return set(self.kind.waits.of_some(places).places.tolist())


def _slot(tasks: Sequence[RankTask], times: Sequence[tuple[Ticks, Ticks]], ticks: int) -> SlotSteps:
    pairs = zip(tasks, times, strict=True)
    ends = [int(own[task.graph.compute_ops].max(initial=0)) for task, (_, own) in pairs]
    slack = np.array([ticks - end for end in ends], dtype=np.float64)
    return SlotSteps(op_steps(tasks[0].graph, _durations(times)), slack)


def _durations(times: Sequence[tuple[Ticks, Ticks]]) -> Ticks:
    return np.stack([end - start for start, end in times])


def _left(
    tasks: Sequence[RankTask],
    times: Sequence[tuple[Ticks, Ticks]],
    needed: set[int],
    places: Sequence[int],
) -> dict[Awaited, Left | None]:
    """What a slot leaves to later ones: its streams, and the ops that they wait for, whose `places`
    in the stage's program are given."""
    end, graph = np.stack([own for _, own in times]), tasks[0].graph
    found: dict[Awaited, Left | None] = {COMPUTE: None}
    for place, op in enumerate(graph.ops):
        of_stream = end[:, graph.stream == graph.stream[place]].max(axis=1)
        for what, own in ((op.stream, of_stream), (places[place], end[:, place])):
            if what == op.stream or what in needed:
                slack = (own.max() - own).astype(np.float64)
                found[what] = Left(op.stream, place, op.time_key, slack)
    return found


def _kept(steps: Sequence[OpStep], left: Mapping[Awaited, Left | None]) -> list[OpStep]:
    """The ops, of which those whose ends are asked for later are kept until then."""
    places = {each.place for each in left.values() if each is not None}
    count = len(steps)
    return [
        replace(step, reach=count - at) if at in places else step for at, step in enumerate(steps)
    ]
