"""The critical path of a pipelined step, slot by slot, for schedules too long to walk op by op.

The path is walked back from the last slot of the stage that ends the step: through a slot to its
begin, then to the slot before it or, where the slot waited for a message, over the link to the
stage that sent it. Ops after all slots count as in that stage's breakdown. Within a slot the
breakdown of the stage's slowest rank is taken. Not followed: a send that waits for its receiver;
that time counts as messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from simulator.attribution.breakdown import compute_stream
from simulator.costs.analytic import ComputeCosts
from simulator.engine.simulate import arrays_of_tasks
from simulator.engine.stream_graph import PIPE
from simulator.pipeline.pipeline_step import PipelineRun
from simulator.pipeline.schedule_sim import (
    NO_MESSAGE,
    SlotSchedule,
    SlotTimes,
    message_ends,
    simulate_schedule,
)
from simulator.pipeline.stage_orders import StageOrders
from simulator.ranks.classes import Fabric, until_consistent
from workload.gpt import GPT
from workload.passes.matmul_forms import Forms
from workload.passes.stack import NO_HABITS, Habits
from workload.plan import Plan

Parts = dict[str, int]
Stretch = tuple[str, int, int, int]  # "slot", its stage, place and ticks; or PIPE


@dataclass(frozen=True)
class SlotPath:
    """The slots of a schedule with their times, to be walked back from any end of a slot."""

    pipe: SlotSchedule
    times: list[SlotTimes]

    def back_from(self, stage: int, place: int) -> Iterator[Stretch]:
        """The stretches from a slot's begin back to the step's: they fill that time."""
        at = self.times[stage].start[place]
        while at > 0:
            place = bisect_right(self.times[stage].end, at) - 1
            while place >= 0 and self.times[stage].start[place] == at:
                place -= 1  # a slot without ops
            end = self.times[stage].end[place] if place >= 0 else 0
            if place >= 0 and end == at:
                at = self.times[stage].start[place]
                yield "slot", stage, place, end - at
            elif (sent := self._sender(stage, place + 1, at)) is not None:
                yield PIPE, stage, place, at - sent[1]
                stage, at = sent
            else:
                yield PIPE, stage, place, at - end
                at = end

    def _sender(self, stage: int, place: int, at: int) -> tuple[int, int] | None:
        """The stage whose slot ended just as the message left for which this slot waited."""
        if place >= len(self.times[stage].start) or self.times[stage].start[place] != at:
            return None
        message = self.pipe.arrivals[stage][place]
        if message == NO_MESSAGE:
            return None
        sender, slot = self._departures[message]
        left = at - self.pipe.message_ticks(message)
        return (sender, left) if self.times[sender].end[slot] == left else None

    @cached_property
    def _departures(self) -> dict[int, tuple[int, int]]:
        return {
            message: (stage, place)
            for stage, row in enumerate(self.pipe.departures)
            for place, message in enumerate(row)
        }


@dataclass(frozen=True)
class BlockingPath:
    """The same where slots and messages of a stage take turns: a message begins when the later of
    its two ends is through with what stands before it, and the path goes on there."""

    pipe: SlotSchedule
    times: list[SlotTimes]

    def back_from(self, stage: int, place: int) -> Iterator[Stretch]:
        """The stretches from a slot's begin back to the step's: they fill that time."""
        number = self._lines[stage].index(("slot", place))
        while number:
            what, which = self._lines[stage][number - 1]
            at = self._end(stage, number - 1)
            if what == "slot":
                number -= 1
                yield what, stage, which, at - self.times[stage].start[which]
                continue
            left = at - self.pipe.message_ticks(which)
            yield PIPE, stage, which, at - left
            own = stage, number - 1
            ends = (own, *(end for end in self._ends[which] if end != own))
            stage, number = next(end for end in ends if self._end(end[0], end[1] - 1) == left)

    def _end(self, stage: int, number: int) -> int:
        """When one entry of a stage's line is over; the step begins at 0."""
        if number < 0:
            return 0
        what, which = self._lines[stage][number]
        return self.times[stage].end[which] if what == "slot" else self._over[which]

    @cached_property
    def _lines(self) -> list[list[tuple[str, int]]]:
        """For each stage its slots and messages, one after another."""
        lines = []
        for exchanges in self.pipe.exchanges:
            line: list[tuple[str, int]] = []
            for place, messages in enumerate(exchanges):
                line += [(PIPE, message) for message in messages]
                line.append(("slot", place))
            lines.append(line[:-1])
        return lines

    @cached_property
    def _ends(self) -> dict[int, list[tuple[int, int]]]:
        """For each message the two stages that it concerns, with its places in their lines."""
        found: dict[int, list[tuple[int, int]]] = {}
        for stage, line in enumerate(self._lines):
            for number, (what, which) in enumerate(line):
                if what == PIPE:
                    found.setdefault(which, []).append((stage, number))
        return found

    @cached_property
    def _over(self) -> list[int]:
        return message_ends(self.pipe)


def path_parts(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    forms: Forms,
    habits: Habits = NO_HABITS,
) -> Parts:
    """Ticks along the path by what they go to, as in a breakdown; they sum to the step's."""
    stage_orders = StageOrders(gpt, plan, plan, forms, habits)
    return until_consistent(
        lambda contended: stage_orders.network(fabric, contended),
        lambda network: _parts(PipelineRun(stage_orders, costs, network)),
    )


def _parts(stages: PipelineRun) -> Parts:
    stage_orders = stages.stage_orders
    pipe = stages.schedule()
    times = simulate_schedule(pipe)
    tasks = [task for stage in range(pipe.stages) for task in stages.ending(stage, pipe, times)]
    times_of = arrays_of_tasks(tasks, stages.costs, stages.network)
    last = max(range(len(tasks)), key=lambda number: int(times_of[number][1].max()))
    stage = stages.network.stages[tasks[last].number]
    begin = times[stage].start[-1]
    parts = compute_stream(tasks[last].graph, *times_of[last], begin=begin)
    over = int(times_of[last][1].max())
    parts["idle"] = over - begin - sum(parts.values())
    last_place = len(pipe.orders[stage]) - 1
    path = BlockingPath(pipe, times) if pipe.blocking else SlotPath(pipe, times)
    for what, where, place, ticks in path.back_from(stage, last_place):
        if what == PIPE:
            parts[PIPE] = parts.get(PIPE, 0) + ticks
            continue
        part = stage_orders.kinds[where].part(pipe.orders[where][place])
        cost = stages.cost_of(where, part, stages.carry_ins[where][place])
        for key, own in cost.parts.items():
            parts[key] = parts.get(key, 0) + own
    return parts
