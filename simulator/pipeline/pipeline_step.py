"""A pipelined step: slots timed op by op, the schedule played slot by slot, then the step's end.

Each distinct slot of each kind of stage is simulated once, by itself: slots are closed, since every
stream but those of gradients in the last micro-batch is idle at their ends. What these take from
compute is charged to the slot that follows. The last slot of every stage and what follows it
(gradients, norm, optimizer) are simulated op by op for all stages at once. Not modelled: that the
sums of gradients slow collectives of later slots with which they share links, and these them. Where
rank classes of a stage differ, a slot takes as long as in the slowest of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from simulator.attribution.breakdown import parts_of
from simulator.costs.analytic import ComputeCosts
from simulator.engine.simulate import carried_out, durations_of, simulate_tasks
from simulator.engine.streams import RankTask
from simulator.pipeline.schedule_sim import NO_MESSAGE, SlotSchedule, SlotTimes, simulate_schedule
from simulator.pipeline.slot_cost import SlotCost, ends_of_all, floors_of, slot_cost, with_tail
from simulator.pipeline.slot_ops import SlotOps, StageKind, kind_of
from simulator.pipeline.stage_memory import stage_peak
from simulator.pipeline.steady_rounds import FoldedSchedule, folded_plan, grown
from simulator.ranks.classes import Fabric, InFlight, RankClasses, classes_of, until_consistent
from simulator.result import StepResult
from workload.gpt import GPT
from workload.lowering import check
from workload.passes.matmul_forms import PLAIN, Forms
from workload.plan import Plan
from workload.schedule import Slot, slots
from workload.stages import like_stages


def simulate_pipeline(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    *,
    fold: bool = True,
    forms: Forms = PLAIN,
) -> StepResult:
    """Simulate a step of several stages; `fold` leaves out micro-batches of the steady state."""
    check(gpt, plan)
    small = folded_plan(plan) if fold else plan
    while (step := _attempt(StageOrders(gpt, plan, small, forms), costs, fabric)) is None:
        small = grown(plan, small)
    return step


def simulate_slots(
    gpt: GPT, plan: Plan, costs: ComputeCosts, fabric: Fabric, *, forms: Forms = PLAIN
) -> StepResult | None:
    """Simulate a step of one stage slot by slot: exact, and faster than op by op where there are
    many micro-batches. Nothing where ranks differ, since their slots need not end together.
    """
    step = simulate_pipeline(gpt, plan, costs, fabric, forms=forms)
    return step if step.rank_classes == 1 else None


def _attempt(lines: StageOrders, costs: ComputeCosts, fabric: Fabric) -> StepResult | None:
    return until_consistent(
        lambda crowds: lines.network(fabric, crowds),
        lambda network: PipelineRun(lines, costs, network).step(),
    )


@dataclass(frozen=True)
class StageOrders:
    """The stages' orders of slots, for `plan` shortened to the micro-batches of `small`."""

    gpt: GPT
    plan: Plan
    small: Plan
    forms: Forms

    @cached_property
    def orders(self) -> list[tuple[Slot, ...]]:
        """Each stage's slots."""
        p = self.small
        return [
            slots(p.schedule, stage, p.pipe, p.micro_batches, p.interleave)
            for stage in range(p.pipe)
        ]

    @cached_property
    def kinds(self) -> list[StageKind]:
        """Each stage's kind."""
        first = like_stages(self.gpt, self.small)
        known = {
            stage: kind_of(self.gpt, self.small, stage, self.orders[stage], self.forms)
            for stage in sorted(set(first))
        }
        return [known[stage] for stage in first]

    def network(self, fabric: Fabric, crowds: Sequence[InFlight]) -> RankClasses:
        """The network as the stages use it."""
        programs = [kind.program for kind in self.kinds]
        links = [(f"link{stage}",) for stage in range(self.plan.pipe - (self.plan.interleave == 1))]
        return classes_of(programs, fabric, crowds=crowds, also=links)


CarryIns = tuple[tuple[tuple[str, int], ...], ...]  # what is due by each class of a stage


@dataclass(frozen=True)
class PipelineRun:
    """The stages on a network. `blocks` keeps what is known of slots."""

    lines: StageOrders
    costs: ComputeCosts
    network: RankClasses
    blocks: dict[tuple[object, ...], SlotCost] = field(default_factory=dict, repr=False)

    def step(self) -> StepResult | None:
        """The whole step, or nothing if it is not yet in its steady state."""
        lines, plan = self.lines, self.lines.plan
        pipe = SlotSchedule(
            orders=lines.orders,
            ticks=[self.slot_ticks(stage) for stage in range(plan.pipe)],
            links=[self.link_ticks(stage) for stage in range(plan.pipe)],
            overlapped="pp" in plan.overlap,
            micro_batches=lines.small.micro_batches,
        )
        times = simulate_schedule(pipe)
        folded = FoldedSchedule(plan, lines.small, pipe, times)
        if not folded.is_steady:
            return None
        return self._step(pipe, times, folded.shift_ticks)

    def _step(self, pipe: SlotSchedule, times: Sequence[SlotTimes], shift: int) -> StepResult:
        lines, count = self.lines, self.lines.plan.micro_batches
        cast = [role for stage in range(pipe.stages) for role in self.ending(stage, pipe, times)]
        played = simulate_tasks(cast, self.costs, self.network)
        over = max(max(ends) for _, ends in played)
        stage = max(range(pipe.stages), key=lambda number: (sum(pipe.ticks[number]), -number))
        mine = [n for n, role in enumerate(cast) if self.network.stages[role.number] == stage]
        latest = max(mine, key=lambda n: max(played[n][1]))
        begin = times[stage].start[-1]
        parts = parts_of(cast[latest].ops, cast[latest].score.waits, *played[latest], begin)
        parts = with_tail(parts, cast[latest], played[latest][1], begin)
        last = sum(parts.values()) + begin
        parts = self._with_slots(parts, stage, pipe.orders[stage][-1], begin + shift)
        parts["idle"] = over - last
        kind = lines.kinds[stage]
        peaks = [stage_peak(each, pipe, number, count) for number, each in enumerate(lines.kinds)]
        ends = [*pipe.arrivals[stage], *pipe.departures[stage]]
        messages = sum(message != NO_MESSAGE for message in ends)
        messages = messages * count // lines.small.micro_batches
        ops, volume = kind.volume(count)
        flops = [each.flops(count) for each in lines.kinds]
        return StepResult(
            parts_ticks=parts,
            memory=max(peaks, key=lambda use: use.total_bytes),
            ops=ops + 2 * messages,
            comm_bytes=_with_messages(volume, messages * kind.message_bytes),
            model_flops=sum(model for model, _ in flops),
            hardware_flops=sum(hardware for _, hardware in flops),
            rank_classes=len(self.network.ranks),
            layers=lines.gpt.layers,
            micro_batches=lines.small.micro_batches,
        )

    def _with_slots(
        self, ending: dict[str, int], stage: int, last: Slot, begin: int
    ) -> dict[str, int]:
        """Where a stage's time goes: `ending`, which starts with the `last` slot at `begin`, and
        before it the other slots and the pipeline's waits between them."""
        kind = self.lines.kinds[stage]
        parts, busy = dict(ending), 0
        for (slot, owed), count in self._counts(stage).items():
            block = self.block(stage, kind.part(slot), owed)
            times = count - (kind.part(slot) is kind.part(last))
            busy += times * block.ticks
            for key, ticks in block.parts.items():
                parts[key] = parts.get(key, 0) + times * ticks
        if waited := parts.get("pipe", 0) + begin - busy:
            parts["pipe"] = waited
        return parts

    def _counts(self, stage: int) -> Counter[tuple[Slot, CarryIns]]:
        """How many slots of the whole step each sampled one stands for, by what is under way
        then; in micro-batches left out that is what it is in most of their likes."""
        kind, found = self.lines.kinds[stage], Counter[tuple[Slot, CarryIns]]()
        for slot, owed in zip(self.lines.orders[stage], self.owed[stage], strict=True):
            found[replace(slot, micro_batch=kind.like(slot)), owed] += 1
        for slot, copies in kind.counts(self.lines.plan.micro_batches).items():
            alike = {owed: n for (other, owed), n in found.items() if other == slot}
            if alike:
                found[slot, max(alike, key=lambda owed: alike[owed])] += copies - sum(
                    alike.values()
                )
        return found

    def ending(self, stage: int, pipe: SlotSchedule, times: Sequence[SlotTimes]) -> list[RankTask]:
        """The stage's last slot, and what comes after all slots."""
        kind, order, own = self.lines.kinds[stage], pipe.orders[stage], times[stage]
        known: dict[str, int] = {}
        owed = self.owed[stage]
        for slot, begin, due in zip(order[:-1], own.start, owed, strict=False):
            part = kind.part(slot)
            if self.block(stage, part, due).has_tails:
                floors = floors_of(kind, part.ops, begin, known)
                cast = self._cast(stage, part, due, floors)
                known |= ends_of_all(cast, simulate_tasks(cast, self.costs, self.network))
        end, count = kind.ending(order[-1]), len(kind.part(order[-1]).ops)
        floors = {**floors_of(kind, end.ops, own.start[-1], known), count: own.free[-1]}
        return self._cast(stage, end, owed[-1], floors)

    def _cast(
        self,
        stage: int,
        part: SlotOps,
        owed: CarryIns,
        floors: Mapping[int, int] = MappingProxyType({}),
    ) -> list[RankTask]:
        pairs = zip(self._classes(stage), owed, strict=True)
        return [RankTask(number, part.score, part.ops, floors, dict(due)) for number, due in pairs]

    @cached_property
    def owed(self) -> list[list[CarryIns]]:
        """What is under way as each slot of each stage begins."""
        return [self._owed(stage) for stage in range(self.lines.plan.pipe)]

    def _owed(self, stage: int) -> list[CarryIns]:
        due: CarryIns = ((),) * len(self._classes(stage))
        known, result = dict[tuple[int, CarryIns], CarryIns](), list[CarryIns]()
        for slot in self.lines.orders[stage]:
            result.append(due)
            part = self.lines.kinds[stage].part(slot)
            key = id(part), due
            if key not in known:
                cast = self._cast(stage, part, due)
                left = carried_out(cast, self.costs, self.network)
                known[key] = tuple(tuple(streams.items()) for streams in left)
            due = known[key]
        return result

    def slot_ticks(self, stage: int) -> list[int]:
        """How long each of a stage's slots takes."""
        kind = self.lines.kinds[stage]
        pairs = zip(self.lines.orders[stage], self.owed[stage], strict=True)
        return [self.block(stage, kind.part(slot), owed).ticks for slot, owed in pairs]

    def block(self, stage: int, part: SlotOps, owed: CarryIns) -> SlotCost:
        """A slot as this stage runs it."""
        near = stage, id(part), owed
        if near not in self.blocks:
            cast = self._cast(stage, part, owed)
            same = id(part), *durations_of(cast, self.costs, self.network)
            if same not in self.blocks:
                self.blocks[same] = slot_cost(cast, self.costs, self.network)
            self.blocks[near] = self.blocks[same]
        return self.blocks[near]

    def _classes(self, stage: int) -> list[int]:
        return [number for number, own in enumerate(self.network.stages) if own == stage]

    def link_ticks(self, stage: int) -> int:
        """A message's time from this stage to the next in the ring of stages, or back."""
        ops = self.lines.kinds[stage].program.ops
        message = next((op for op in ops if op.is_message), None)
        if message is None:
            return 0
        there = replace(message, attributes={**message.attributes, "link": stage})
        if there.group not in self.network.meetings:
            return 0
        ticks = self.network.ticks(there)
        return max(ticks[number] for number in self._classes(stage))


def _with_messages(volume: dict[str, int], nbytes: int) -> dict[str, int]:
    return {**volume, "pipe": volume.get("pipe", 0) + nbytes} if nbytes else volume
