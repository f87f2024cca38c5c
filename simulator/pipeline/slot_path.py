"""The critical path of a pipelined step, slot by slot, for schedules too long to walk op by op.

From the end of the last slot of the stage that ends the step one walks back: through a slot to its
begin, from there to the slot before it or, where the slot waited for a message, over the link to
the stage that sent it. What comes after all slots counts as the stage sees it. In a slot time goes
where the compute stream of the stage's slowest rank has it. Not followed: what a send waits for at
its receiver; that time counts as messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from simulator.attribution.breakdown import parts_of
from simulator.costs.analytic import ComputeCosts
from simulator.engine.simulate import simulate_tasks
from simulator.pipeline.pipeline_step import PipelineRun, StageOrders
from simulator.pipeline.schedule_sim import NO_MESSAGE, SlotSchedule, SlotTimes, simulate_schedule
from simulator.ranks.classes import Fabric, until_consistent
from workload.gpt import GPT
from workload.passes.matmul_forms import Forms
from workload.plan import Plan

MESSAGES = "pipe"
Parts = dict[str, int]
Stretch = tuple[str, int, int, int]  # "slot", its stage, place and ticks; or MESSAGES


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
                yield MESSAGES, stage, place, at - sent[1]
                stage, at = sent
            else:
                yield MESSAGES, stage, place, at - end
                at = end

    def _sender(self, stage: int, place: int, at: int) -> tuple[int, int] | None:
        """The stage whose slot ended just as the message left for which this slot waited."""
        if place >= len(self.times[stage].start) or self.times[stage].start[place] != at:
            return None
        message = self.pipe.arrivals[stage][place]
        if message == NO_MESSAGE:
            return None
        sender, slot = self._departures[message]
        left = at - self.pipe.links[self.pipe.link(message)]
        return (sender, left) if self.times[sender].end[slot] == left else None

    @cached_property
    def _departures(self) -> dict[int, tuple[int, int]]:
        return {
            message: (stage, place)
            for stage, row in enumerate(self.pipe.departures)
            for place, message in enumerate(row)
        }


def path_parts(gpt: GPT, plan: Plan, costs: ComputeCosts, fabric: Fabric, forms: Forms) -> Parts:
    """Ticks along the path by what they go to, as in a breakdown; they sum to the step's."""
    lines = StageOrders(gpt, plan, plan, forms)
    return until_consistent(
        lambda crowds: lines.network(fabric, crowds),
        lambda network: _parts(PipelineRun(lines, costs, network)),
    )


def _parts(stages: PipelineRun) -> Parts:
    lines = stages.lines
    pipe = SlotSchedule(
        orders=lines.orders,
        ticks=[stages.slot_ticks(stage) for stage in range(lines.plan.pipe)],
        links=[stages.link_ticks(stage) for stage in range(lines.plan.pipe)],
        overlapped="pp" in lines.plan.overlap,
        micro_batches=lines.small.micro_batches,
    )
    times = simulate_schedule(pipe)
    cast = [role for stage in range(pipe.stages) for role in stages.ending(stage, pipe, times)]
    played = simulate_tasks(cast, stages.costs, stages.network)
    last = max(range(len(cast)), key=lambda number: max(played[number][1]))
    stage = stages.network.stages[cast[last].number]
    begin = times[stage].start[-1]
    parts = parts_of(cast[last].ops, cast[last].score.waits, *played[last], begin)
    over = max(played[last][1])
    parts["idle"] = over - begin - sum(parts.values())
    last_place = len(pipe.orders[stage]) - 1
    for what, where, place, ticks in SlotPath(pipe, times).back_from(stage, last_place):
        if what == MESSAGES:
            parts[MESSAGES] = parts.get(MESSAGES, 0) + ticks
            continue
        part = lines.kinds[where].part(pipe.orders[where][place])
        block = stages.block(where, part, stages.owed[where][place])
        for key, own in block.parts.items():
            parts[key] = parts.get(key, 0) + own
    return parts
