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

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np

from simulator.attribution.breakdown import compute_stream, with_tail
from simulator.costs.analytic import ComputeCosts
from simulator.engine.known_steps import known_step
from simulator.engine.simulate import Prices, arrays_of_tasks, carry_outs, host_waits
from simulator.engine.stream_graph import PIPE
from simulator.engine.streams import RankTask
from simulator.pipeline.schedule_sim import (
    ScheduleTimes,
    SlotSchedule,
    busiest_stage,
    simulate_schedule,
)
from simulator.pipeline.slot_cost import (
    EarlierEnds,
    LateSlot,
    SlotCost,
    meetings_of,
    slot_cost,
)
from simulator.pipeline.slot_ops import SlotOps
from simulator.pipeline.stage_orders import StageOrders, stage_orders_of
from simulator.ranks.classes import Answer, Fabric, RankClasses, until_consistent
from simulator.result import StepResult
from topologies.records import record
from workload.gpt import GPT
from workload.lowering import check
from workload.op import Op
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.sizes.arrays import Indices, Ticks


def simulate_pipeline(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    *,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> StepResult:
    """Simulate a step of several stages."""
    check(gpt, plan)
    orders = stage_orders_of(gpt, plan, forms, behaviour)
    return asked_of_run(orders, costs, fabric, PipelineRun.known)


def asked_of_run(
    orders: StageOrders,
    costs: ComputeCosts,
    fabric: Fabric,
    ask: Callable[[PipelineRun], Answer],
) -> Answer:
    """What a run of these stages answers, with as many rank classes as it takes."""
    return until_consistent(
        lambda contended: orders.network(fabric, contended),
        lambda network: ask(PipelineRun(orders, costs, network)),
    )


# By rank class of a stage, then by stream: ticks in flight at a slot's begin.
CarryIns = tuple[tuple[tuple[str, int], ...], ...]
Ways = dict[str, int]  # ticks of the compute stream by cause


class SlotsOfStage(NamedTuple):
    """The slots of a stage as they run: each different one as what stands for it and what is in
    flight at its begin, with its cost; for each slot of the order which it is, and how many are."""

    slots: list[tuple[SlotOps, CarryIns]]
    costs: list[SlotCost]
    which: Indices

    @property
    def ticks(self) -> Ticks:
        """How long each slot takes."""
        each = np.array([cost.ticks for cost in self.costs], dtype=np.int64)
        return np.asarray(each[self.which])

    @property
    def counts(self) -> list[int]:
        """How many slots of the order each is."""
        counts: list[int] = np.bincount(self.which, minlength=len(self.slots)).tolist()
        return counts


@record(slots=False)
class PipelineRun:
    """The stages of a step on a machine."""

    stage_orders: StageOrders
    costs: ComputeCosts
    network: RankClasses
    _known_costs: dict[tuple[object, ...], SlotCost] = field(default_factory=dict, repr=False)
    _known_left: dict[tuple[object, ...], CarryIns] = field(default_factory=dict, repr=False)
    _known_meetings: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)
    _alike_meetings: dict[tuple[object, ...], int] = field(default_factory=dict, repr=False)

    @cached_property
    def prices(self) -> Prices:
        """What ops take."""
        return Prices(self.costs, self.network)

    def known(self) -> StepResult:
        """The whole step, simulated unless the session knows it."""
        orders = self.stage_orders
        if orders.forms:
            return self.step()
        links = tuple(self.link_ticks(stage) for stage in range(orders.plan.pp))
        program = orders.gpt, orders.plan, orders.behaviour, links
        step = known_step(program, self.prices, orders.sorts, self.step)
        assert step is not None, "a pipeline is simulated whole"
        return step

    def step(self) -> StepResult:
        """The whole step, simulated."""
        stage_orders, count = self.stage_orders, self.stage_orders.plan.micro_batches
        schedule = self.schedule
        stage = busiest_stage(schedule)
        parts = self._where_time_goes(stage)
        kind = stage_orders.kinds[stage]
        departures = schedule.shared.departures[stage]
        ends = np.concatenate([schedule.shared.arrivals[stage], departures])
        messages, sent = schedule.by_direction(ends), schedule.by_direction(departures)
        nbytes = sum(n * each for n, each in zip(sent, kind.message_bytes, strict=True))
        totals = kind.totals(count)
        payload = totals.payload
        model_flops, hardware_flops = stage_orders.flops
        return StepResult(
            parts_ticks=parts,
            stage_memory=stage_orders.peaks,
            ops=totals.ops + schedule.ops_of_message * sum(messages),
            comm_bytes=payload | ({PIPE: payload.get(PIPE, 0) + nbytes} if sum(messages) else {}),
            model_flops=model_flops,
            hardware_flops=hardware_flops,
            rank_classes=len(self.network.ranks),
            micro_batches=count,
        )

    def _where_time_goes(self, stage: int) -> Ways:
        """Ticks of a stage's compute stream by what they go to; they sum to the step's."""
        last = self.ends.latest_of(stage)
        task, times = self.ends.tasks[last], self.ends.times[last]
        over = max(int(end.max()) for _, end in self.ends.times)
        begin, graph = int(self.times.stages[stage].start[-1]), task.graph
        parts = compute_stream(graph, *times, self.hosts(task), begin=begin)
        parts = with_tail(parts, graph, times[1], begin + sum(parts.values()))
        through = sum(parts.values()) + begin
        parts = self._with_slots(parts, stage, begin)
        parts["idle"] = over - through
        return parts

    def _with_slots(self, ending: Ways, stage: int, begin: int) -> Ways:
        """Where a stage's time goes: `ending`, which starts with the last slot at `begin`, and
        before it the other slots and the pipeline's waits between them."""
        parts, busy, own = dict(ending), 0, self.slots[stage]
        counts = own.counts
        counts[int(own.which[-1])] -= 1
        for number in _in_order(own.which):
            cost, count = own.costs[number], counts[number]
            busy += count * cost.ticks
            for key, ticks in cost.parts.items():
                parts[key] = parts.get(key, 0) + count * ticks
        if waited := parts.get(PIPE, 0) + begin - busy:
            parts[PIPE] = waited
        return parts

    @cached_property
    def schedule(self) -> SlotSchedule:
        """The schedule with the durations of slots and messages."""
        stages = range(self.stage_orders.plan.pp)
        ticks = [self.slots[stage].ticks for stage in stages]
        links = [self.link_ticks(stage) for stage in stages]
        return SlotSchedule(self.stage_orders.messages, ticks, links)

    @cached_property
    def times(self) -> ScheduleTimes:
        """When slots and messages start and end."""
        return simulate_schedule(self.schedule)

    @cached_property
    def ends(self) -> StepEnd:
        """The last slots of all stages, and what comes after all slots, simulated together."""
        tasks = [task for stage in range(self.schedule.stages) for task in self.ending(stage)]
        return StepEnd(self.network, tasks, self.simulated(tasks))

    def ending(self, stage: int) -> list[RankTask]:
        """The stage's last slot, and what comes after all slots."""
        own, times, end = self.slots[stage], self.times.stages[stage], self.ending_part(stage)
        _, carry_ins = own.slots[int(own.which[-1])]
        floors = self.earlier[stage].floors(end, int(times.start[-1]))
        behind = len(self.stage_orders.kinds[stage].end.places)
        floors[-behind] = times.over
        return self.tasks(stage, end, carry_ins, floors)

    def ending_part(self, stage: int) -> SlotOps:
        """The ops of the stage's last slot and of what comes after all slots."""
        order = self.stage_orders.orders[stage]
        return self.stage_orders.kinds[stage].ending(order[len(order) - 1])

    @cached_property
    def earlier(self) -> list[EarlierEnds]:
        """By stage the slots before the last that leave other streams busy, as they are in the
        step."""
        return [self._earlier(stage) for stage in range(self.schedule.stages)]

    def _earlier(self, stage: int) -> EarlierEnds:
        own, times = self.slots[stage], self.times.stages[stage]
        ends = EarlierEnds(self.stage_orders.kinds[stage])
        for place in self.with_tails(stage):
            part, carry_ins = own.slots[int(own.which[place])]
            floors = ends.floors(part, int(times.start[place]))
            tasks = self.tasks(stage, part, carry_ins, floors)
            ends.note(LateSlot(place, part, tasks, self.simulated(tasks)))
        return ends

    def with_tails(self, stage: int) -> list[int]:
        """The slots before the last that leave other streams busy, by their places."""
        own = self.slots[stage]
        tails = np.array([cost.has_tails for cost in own.costs])
        places: list[int] = np.flatnonzero(tails[own.which[:-1]]).tolist()
        return places

    def tasks(
        self, stage: int, part: SlotOps, carry_ins: CarryIns, floors: Ticks | None = None
    ) -> list[RankTask]:
        """A slot as each of the stage's rank classes runs it."""
        pairs = zip(self._classes[stage], carry_ins, strict=True)
        return [RankTask(number, part.graph, floors, dict(carry_in)) for number, carry_in in pairs]

    def simulated(self, tasks: Sequence[RankTask]) -> list[tuple[Ticks, Ticks]]:
        """When the ops of tasks start and end."""
        return arrays_of_tasks(tasks, self.prices)

    def hosts(self, task: RankTask) -> Ticks:
        """By op of a task, for how many ticks its device waits for the host."""
        return host_waits(task, self.prices)

    @cached_property
    def slots(self) -> list[SlotsOfStage]:
        """The slots of each stage as they run."""
        return [self._slots(stage) for stage in range(self.stage_orders.plan.pp)]

    def _slots(self, stage: int) -> SlotsOfStage:
        """Slot by slot, what is in flight at its begin being what the one before left in flight."""
        parts, idle = self.stage_orders.parts[stage], ((),) * len(self._classes[stage])
        every, carried = parts.which.tolist(), cast(CarryIns, idle)
        leaves = [self._carry_out(stage, part, idle) != idle for part in parts.distinct]
        first = next(iter(np.flatnonzero(np.array(leaves)[parts.which])), len(every))
        # Up to there no slot begins with anything in flight.
        number = {(own, carried): at for at, own in enumerate(dict.fromkeys(every[:first]))}
        which = [number[own, carried] for own in every[:first]]
        left = [carried] * len(number)
        for own in every[first:]:
            at = number.setdefault((own, carried), len(number))
            if at == len(left):
                left.append(self._carry_out(stage, parts.distinct[own], carried))
            which.append(at)
            carried = left[at]
        slots = [(parts.distinct[own], carry_ins) for own, carry_ins in number]
        costs = [self.cost_of(stage, *slot) for slot in slots]
        return SlotsOfStage(slots, costs, np.array(which, dtype=np.int64))

    def _carry_out(self, stage: int, part: SlotOps, carry_in: CarryIns) -> CarryIns:
        """Collectives in flight at the end of a slot."""
        streams = dict.fromkeys(stream for own in carry_in for stream, _ in own)
        part = self.stage_orders.canonical(part)
        if not part.graph.interference(tuple(streams)).unmatched:
            return ((),) * len(carry_in)
        key = part, carry_in, self._meetings(stage)
        if key not in self._known_left:
            left = carry_outs(self.tasks(stage, part, carry_in), self.prices)
            self._known_left[key] = tuple(tuple(ticks.items()) for ticks in left)
        return self._known_left[key]

    def cost_of(self, stage: int, part: SlotOps, carry_ins: CarryIns) -> SlotCost:
        """A slot as this stage runs it."""
        part = self.stage_orders.canonical(part)
        key = part, carry_ins, self._meetings(stage)
        if key not in self._known_costs:
            tasks = self.tasks(stage, part, carry_ins)
            self._known_costs[key] = slot_cost(tasks, self.simulated(tasks), self.hosts)
        return self._known_costs[key]

    def _meetings(self, stage: int) -> int:
        """A number that is equal for stages whose ranks meet in the same way, and contend on the
        same rings, with all in flight that was so far: slots of these cost as much."""
        key = stage, len(self.network.contended)
        if key not in self._known_meetings:
            known, how = self._alike_meetings, meetings_of(self._classes[stage], self.network)
            self._known_meetings[key] = known.setdefault(how, len(known))
        return self._known_meetings[key]

    @cached_property
    def _classes(self) -> list[list[int]]:
        """The rank classes of each stage."""
        found: list[list[int]] = [[] for _ in range(self.stage_orders.plan.pp)]
        for number, stage in enumerate(self.network.stages):
            found[stage].append(number)
        return found

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
        return max(ticks[number] for number in self._classes[stage])


class StepEnd(NamedTuple):
    """The tasks of all stages' last slots and of what follows them, with their times."""

    network: RankClasses
    tasks: list[RankTask]
    times: list[tuple[Ticks, Ticks]]

    def latest_of(self, stage: int) -> int:
        """The task of a stage that ends last, by its place."""
        return max(self.of_stage(stage), key=lambda n: int(self.times[n][1].max()))

    def of_stage(self, stage: int) -> list[int]:
        """The tasks of a stage, by their places."""
        return [n for n, task in enumerate(self.tasks) if self.network.stages[task.number] == stage]

    @property
    def latest(self) -> int:
        """The task that ends last of all, by its place."""
        return max(range(len(self.tasks)), key=lambda n: int(self.times[n][1].max()))


def _in_order(which: Indices) -> list[int]:
    """The different numbers in the order in which they come."""
    used, first = np.unique(which, return_index=True)
    order: list[int] = used[np.argsort(first)].tolist()
    return order
