"""A pipelined step: slots simulated op by op, the schedule slot by slot, then the step's end.

Every distinct slot of every kind of stage is simulated once, alone. That is exact because slots are
closed: at the end of a slot every stream is idle, except those of gradients in the last
micro-batch, whose interference with compute is carried into the next slot (`carry_ins`). The
schedule is then simulated with one duration per slot. The last slot of every stage and what follows
it (sums of gradients, norm, optimizer) are simulated op by op for all stages at once.

Not modelled: contention between sums of gradients and collectives of later slots. Where rank
classes of a stage differ, a slot takes as long as in the slowest of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from simulator.attribution.breakdown import compute_stream, with_tail
from simulator.costs.analytic import ComputeCosts
from simulator.engine.simulate import Prices, arrays_of_tasks, carry_outs, host_waits
from simulator.engine.stream_graph import PIPE
from simulator.engine.streams import RankTask
from simulator.pipeline.schedule_sim import (
    SlotSchedule,
    SlotTimes,
    busiest_stage,
    simulate_schedule,
)
from simulator.pipeline.slot_cost import SlotCost, ends_of_all, floors_of, meetings_of, slot_cost
from simulator.pipeline.slot_ops import SlotOps
from simulator.pipeline.stage_memory import stage_peak
from simulator.pipeline.stage_orders import StageOrders, stage_orders_of
from simulator.pipeline.steady_rounds import FoldedSchedule, folded_plan, grown
from simulator.ranks.classes import Fabric, RankClasses, until_consistent
from simulator.result import StepResult
from workload.gpt import GPT
from workload.lowering import check
from workload.op import Op
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import NO_HABITS, Habits
from workload.pipeline.message_order import order_of_messages
from workload.plan import Plan
from workload.sizes.arrays import Ticks


def simulate_pipeline(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    *,
    fold: bool = True,
    forms: Forms = PLAIN,
    habits: Habits = NO_HABITS,
) -> StepResult:
    """Simulate a step of several stages; `fold` leaves out micro-batches of the steady state."""
    check(gpt, plan)
    small = folded_plan(plan) if fold else plan
    while (
        step := _attempt(stage_orders_of(gpt, plan, small, forms, habits), costs, fabric)
    ) is None:
        small = grown(plan, small)
    return step


def _attempt(stage_orders: StageOrders, costs: ComputeCosts, fabric: Fabric) -> StepResult | None:
    return until_consistent(
        lambda contended: stage_orders.network(fabric, contended),
        lambda network: PipelineRun(stage_orders, costs, network).step(),
    )


# By rank class of a stage, then by stream: ticks in flight at a slot's begin.
CarryIns = tuple[tuple[tuple[str, int], ...], ...]
Parts = dict[str, int]  # ticks of the compute stream by cause


@dataclass(frozen=True)
class PipelineRun:
    """The stages of a step on a machine. `known_costs` keeps the cost of slots simulated so far."""

    stage_orders: StageOrders
    costs: ComputeCosts
    network: RankClasses
    known_costs: dict[tuple[object, ...], SlotCost] = field(default_factory=dict, repr=False)
    known_alike: dict[tuple[object, ...], SlotCost] = field(default_factory=dict, repr=False)
    known_meetings: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)
    _alike_meetings: dict[tuple[object, ...], int] = field(default_factory=dict, repr=False)

    @cached_property
    def prices(self) -> Prices:
        """What ops take."""
        return Prices(self.costs, self.network)

    def step(self) -> StepResult | None:
        """The whole step; None if it is not yet in its steady state."""
        plan, schedule = self.stage_orders.plan, self.schedule()
        times = simulate_schedule(schedule)
        folded = FoldedSchedule(plan, self.stage_orders.small, schedule, times)
        if not folded.is_steady:
            return None
        return self._step(schedule, times, folded.shift_ticks)

    def _step(self, schedule: SlotSchedule, times: Sequence[SlotTimes], shift: int) -> StepResult:
        stage_orders, count = self.stage_orders, self.stage_orders.plan.micro_batches
        tasks = [
            task for stage in range(schedule.stages) for task in self.ending(stage, schedule, times)
        ]
        times_of = self.simulated(tasks)
        over = max(int(end.max()) for _, end in times_of)
        stage = busiest_stage(schedule)
        mine = [n for n, task in enumerate(tasks) if self.network.stages[task.number] == stage]
        latest = max(mine, key=lambda n: int(times_of[n][1].max()))
        begin, graph = times[stage].start[-1], tasks[latest].graph
        parts = compute_stream(graph, *times_of[latest], self.hosts(tasks[latest]), begin=begin)
        parts = with_tail(parts, graph, times_of[latest][1], begin + sum(parts.values()))
        last = sum(parts.values()) + begin
        parts = self._with_slots(parts, stage, begin + shift)
        parts["idle"] = over - last
        kind = stage_orders.kinds[stage]
        peaks = (
            stage_peak(each, stage_orders.parts[number], schedule, number, count)
            for number, each in enumerate(stage_orders.kinds)
        )
        small = stage_orders.small.micro_batches
        departures = schedule.departures[stage]
        messages, sent = (
            [each * count // small for each in schedule.by_direction(ends)]
            for ends in ([*schedule.arrivals[stage], *departures], departures)
        )
        nbytes = sum(n * each for n, each in zip(sent, kind.message_bytes, strict=True))
        ops, volume = kind.volume(count)
        flops = [each.flops(count) for each in stage_orders.kinds]
        return StepResult(
            parts_ticks=parts,
            stage_memory=tuple(peaks),
            ops=ops + schedule.ops_of_message * sum(messages),
            comm_bytes=volume | ({PIPE: volume.get(PIPE, 0) + nbytes} if sum(messages) else {}),
            model_flops=sum(model for model, _ in flops),
            hardware_flops=sum(hardware for _, hardware in flops),
            rank_classes=len(self.network.ranks),
            micro_batches=small,
        )

    def _with_slots(self, ending: Parts, stage: int, begin: int) -> Parts:
        """Where a stage's time goes: `ending`, which starts with the last slot at `begin`, and
        before it the other slots and the pipeline's waits between them."""
        last = self.stage_orders.parts[stage][-1]
        parts, busy = dict(ending), 0
        for (part, carry_ins), count in self.copies(stage).items():
            cost = self.cost_of(stage, part, carry_ins)
            times = count - (part is last)
            busy += times * cost.ticks
            for key, ticks in cost.parts.items():
                parts[key] = parts.get(key, 0) + times * ticks
        if waited := parts.get(PIPE, 0) + begin - busy:
            parts[PIPE] = waited
        return parts

    def copies(self, stage: int) -> Counter[tuple[SlotOps, CarryIns]]:
        """How many slots of the whole step each part stands for, by carry-in.

        Omitted micro-batches take the most frequent carry-in.
        """
        kind, plan = self.stage_orders.kinds[stage], self.stage_orders.plan
        found = Counter(zip(self.stage_orders.parts[stage], self.carry_ins[stage], strict=True))
        if plan == self.stage_orders.small:
            return found
        for slot, copies in kind.counts(plan.micro_batches).items():
            own = kind.part(slot)
            alike = {carry_ins: n for (part, carry_ins), n in found.items() if part is own}
            if alike:
                most = max(alike, key=lambda carry_ins: alike[carry_ins])
                found[own, most] += copies - sum(alike.values())
        return found

    def ending(
        self, stage: int, schedule: SlotSchedule, times: Sequence[SlotTimes]
    ) -> list[RankTask]:
        """The stage's last slot, and what comes after all slots."""
        kind, order, own = self.stage_orders.kinds[stage], schedule.orders[stage], times[stage]
        known: dict[str, int] = {}
        carry_ins, every = self.carry_ins[stage], self.stage_orders.parts[stage]
        for part, begin, carry_in in zip(every[:-1], own.start, carry_ins, strict=False):
            if self.cost_of(stage, part, carry_in).has_tails:
                floors = floors_of(kind, part.ops, begin, known)
                tasks = self.tasks(stage, part, carry_in, floors)
                known |= ends_of_all(tasks, self.simulated(tasks))
        end, count = kind.ending(order[-1]), len(kind.part(order[-1]).ops)
        floors = {**floors_of(kind, end.ops, own.start[-1], known), count: own.over}
        return self.tasks(stage, end, carry_ins[-1], floors)

    def tasks(
        self,
        stage: int,
        part: SlotOps,
        carry_ins: CarryIns,
        floors: Mapping[int, int] = MappingProxyType({}),
    ) -> list[RankTask]:
        """A slot as each of the stage's rank classes runs it."""
        pairs = zip(self._classes(stage), carry_ins, strict=True)
        return [RankTask(number, part.graph, floors, dict(carry_in)) for number, carry_in in pairs]

    def simulated(self, tasks: Sequence[RankTask]) -> list[tuple[Ticks, Ticks]]:
        """When the ops of tasks start and end."""
        return arrays_of_tasks(tasks, self.prices)

    def hosts(self, task: RankTask) -> Ticks:
        """By op of a task, for how many ticks its device waits for the host."""
        return host_waits(task, self.prices)

    def schedule(self) -> SlotSchedule:
        """The schedule with the durations of slots and messages."""
        stage_orders, plan = self.stage_orders, self.stage_orders.plan
        return stage_orders.timed(
            ticks=[self.slot_ticks(stage) for stage in range(plan.pp)],
            links=[self.link_ticks(stage) for stage in range(plan.pp)],
            messages=order_of_messages(stage_orders.habits.messages, plan),
        )

    @cached_property
    def carry_ins(self) -> list[list[CarryIns]]:
        """Collectives in flight at the begin of each slot of each stage."""
        return [self._carry_ins(stage) for stage in range(self.stage_orders.plan.pp)]

    def _carry_ins(self, stage: int) -> list[CarryIns]:
        carry_in: CarryIns = ((),) * len(self._classes(stage))
        known, result = dict[tuple[SlotOps, CarryIns], CarryIns](), list[CarryIns]()
        for part in self.stage_orders.parts[stage]:
            result.append(carry_in)
            key = part, carry_in
            if key not in known:
                known[key] = self._carry_out(stage, part, carry_in)
            carry_in = known[key]
        return result

    def _carry_out(self, stage: int, part: SlotOps, carry_in: CarryIns) -> CarryIns:
        """Collectives in flight at the end of a slot."""
        streams = dict.fromkeys(stream for own in carry_in for stream, _ in own)
        if not part.graph.interference(tuple(streams)).unmatched:
            return ((),) * len(carry_in)
        left = carry_outs(self.tasks(stage, part, carry_in), self.prices)
        return tuple(tuple(ticks.items()) for ticks in left)

    def slot_ticks(self, stage: int) -> list[int]:
        """How long each of a stage's slots takes."""
        pairs = zip(self.stage_orders.parts[stage], self.carry_ins[stage], strict=True)
        return [self.cost_of(stage, part, carry_ins).ticks for part, carry_ins in pairs]

    def cost_of(self, stage: int, part: SlotOps, carry_ins: CarryIns) -> SlotCost:
        """A slot as this stage runs it."""
        near = stage, part, carry_ins
        if near not in self.known_costs:
            part = self.stage_orders.canonical(part)
            key = part, carry_ins, self._meetings(stage)
            if key not in self.known_alike:
                self.known_alike[key] = self._cost(stage, part, carry_ins)
            self.known_costs[near] = self.known_alike[key]
        return self.known_costs[near]

    def _cost(self, stage: int, part: SlotOps, carry_ins: CarryIns) -> SlotCost:
        tasks = self.tasks(stage, part, carry_ins)
        return slot_cost(tasks, self.simulated(tasks), self.hosts)

    def _meetings(self, stage: int) -> int:
        """A number that is equal for stages whose ranks meet in the same way, and contend on the
        same rings, with all in flight that was so far: slots of these cost as much."""
        key = stage, len(self.network.contended)
        if key not in self.known_meetings:
            known, how = self._alike_meetings, meetings_of(self._classes(stage), self.network)
            self.known_meetings[key] = known.setdefault(how, len(known))
        return self.known_meetings[key]

    def _classes(self, stage: int) -> list[int]:
        return [number for number, own in enumerate(self.network.stages) if own == stage]

    def link_ticks(self, stage: int) -> tuple[int, int]:
        """An activation's time from this stage to the next in the ring of stages, and a gradient's
        back."""
        there, back = self.stage_orders.kinds[stage].messages
        return self._message_ticks(stage, there), self._message_ticks(stage, back)

    def _message_ticks(self, stage: int, message: Op | None) -> int:
        there = message and replace(message, attributes={**message.attributes, "link": stage})
        if there is None or there.group not in self.network.class_groups:
            return 0
        ticks = self.network.ticks(there)
        return max(ticks[number] for number in self._classes(stage))
