"""The critical path of a pipelined step, slot by slot, for schedules too long to walk op by op.

The path is walked back from the last slot of the stage that ends the step: through a slot to its
begin, then to the slot before it or, where the stage waited for a message, over the link to the end
that posted it last, and on from there. Ops after all slots count as in that stage's breakdown.
Within a slot the breakdown of the stage's slowest rank is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simulator.attribution.breakdown import compute_stream
from simulator.costs.analytic import ComputeCosts
from simulator.engine.stream_graph import PIPE
from simulator.pipeline.pipeline_step import PipelineRun
from simulator.pipeline.schedule_sim import (
    SlotSchedule,
    SlotTimes,
    message_ends,
    simulate_schedule,
)
from simulator.pipeline.stage_orders import stage_orders_of
from simulator.ranks.classes import Fabric, until_consistent
from workload.gpt import GPT
from workload.passes.matmul_forms import Forms
from workload.passes.stack import NO_HABITS, Habits
from workload.plan import Plan

Parts = dict[str, int]
Stretch = tuple[str, int, int, int]  # "slot", its stage, place and ticks; or PIPE
POSTED, AWAITED = "posted", "awaited"


class Event(NamedTuple):
    """A slot of a stage by its place, or a message by its number, as it is posted or awaited."""

    what: str
    which: int


@dataclass(frozen=True)
class SlotPath:
    """The slots of a schedule with their times, to be walked back from any slot's begin."""

    pp: SlotSchedule
    times: list[SlotTimes]

    def back_from(self, stage: int, place: int) -> Iterator[Stretch]:
        """The stretches from a slot's begin back to the step's: they fill that time."""
        number, at = self._lines[stage].index(Event("slot", place)), self.times[stage].start[place]
        while number:
            number -= 1
            what, which = self._lines[stage][number]
            if what == "slot":
                begin = self.times[stage].start[which]
                yield what, stage, which, at - begin
                at = begin
            elif what == AWAITED and self._clock(stage, number) < at:
                left = at - self.pp.message_ticks(which)
                yield PIPE, stage, which, at - left
                ends = sorted(self._posts[which], key=lambda end: end[0] != stage)
                stage, number = next(end for end in ends if self._clock(*end) == left)
                at = left

    def _clock(self, stage: int, number: int) -> int:
        return self._clocks[stage][number]

    @cached_property
    def _lines(self) -> list[list[Event]]:
        """For each stage its slots, and the messages that it posts and awaits between."""
        lines = []
        for gaps in self.pp.meetings:
            line: list[Event] = []
            for place, gap in enumerate(gaps):
                line += [Event(POSTED if posts else AWAITED, message) for message, posts in gap]
                line.append(Event("slot", place))
            lines.append(line[:-1])
        return lines

    @cached_property
    def _clocks(self) -> list[list[int]]:
        """When each stage comes to each entry of its line."""
        over, clocks = message_ends(self.pp), []
        for times, line in zip(self.times, self._lines, strict=True):
            clock, own = 0, list[int]()
            for what, which in line:
                own.append(clock)
                if what == "slot":
                    clock = times.end[which]
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


def path_parts(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    forms: Forms,
    habits: Habits = NO_HABITS,
) -> Parts:
    """Ticks along the path by what they go to, as in a breakdown; they sum to the step's."""
    stage_orders = stage_orders_of(gpt, plan, plan, forms, habits)
    return until_consistent(
        lambda contended: stage_orders.network(fabric, contended),
        lambda network: _parts(PipelineRun(stage_orders, costs, network)),
    )


def _parts(stages: PipelineRun) -> Parts:
    stage_orders = stages.stage_orders
    pp = stages.schedule()
    times = simulate_schedule(pp)
    tasks = [task for stage in range(pp.stages) for task in stages.ending(stage, pp, times)]
    times_of = stages.simulated(tasks)
    last = max(range(len(tasks)), key=lambda number: int(times_of[number][1].max()))
    stage = stages.network.stages[tasks[last].number]
    begin = times[stage].start[-1]
    hosts = stages.hosts(tasks[last])
    parts = compute_stream(tasks[last].graph, *times_of[last], hosts, begin=begin)
    over = int(times_of[last][1].max())
    parts["idle"] = over - begin - sum(parts.values())
    last_place = len(pp.orders[stage]) - 1
    for what, where, place, ticks in SlotPath(pp, times).back_from(stage, last_place):
        if what == PIPE:
            parts[PIPE] = parts.get(PIPE, 0) + ticks
            continue
        part = stage_orders.parts[where][place]
        cost = stages.cost_of(where, part, stages.carry_ins[where][place])
        for key, own in cost.parts.items():
            parts[key] = parts.get(key, 0) + own
    return parts
