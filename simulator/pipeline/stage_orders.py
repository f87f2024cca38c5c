"""The orders of slots of all stages, and the kinds of stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from simulator.engine.columns import Sorts
from simulator.pipeline.schedule_messages import ScheduleMessages, messages_of
from simulator.pipeline.slot_ops import Parts, SlotOps, StageKind, kind_of
from simulator.pipeline.slot_pairs import parts_in_pairs
from simulator.pipeline.stage_memory import stage_peak
from simulator.ranks.classes import Fabric, InFlight, RankClasses, classes_of
from topologies.records import record
from topologies.session import session_cached
from workload.gpt import GPT
from workload.memory import MemoryUse
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.pipeline.order import Order
from workload.pipeline.schedule import V_SHAPED
from workload.plan import Plan
from workload.sizes.arrays import Indices
from workload.stages import like_stages, order_of_messages, shape_of


@record(slots=False)
class StageOrders:
    """The stages' orders of slots."""

    gpt: GPT
    plan: Plan
    forms: Forms
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR

    @cached_property
    def messages(self) -> ScheduleMessages:
        """The messages between the slots of all stages."""
        return messages_of(
            shape_of(self.plan), order_of_messages(self.behaviour.messages, self.plan)
        )

    @property
    def orders(self) -> Sequence[Order]:
        """Each stage's slots."""
        return self.messages.orders

    @cached_property
    def kinds(self) -> list[StageKind]:
        """Each stage's kind."""
        return [self.kind(stage) for stage in range(self.plan.pp)]

    def kind(self, stage: int) -> StageKind:
        """One stage's kind, that of the first like it."""
        first = self.firsts[stage]
        if first not in self._kinds:
            how = self.orders[first], self.forms, self.behaviour
            self._kinds[first] = kind_of(self.gpt, self.plan, first, *how)
        return self._kinds[first]

    @cached_property
    def firsts(self) -> list[int]:
        """For each stage the first that is like it."""
        return like_stages(self.gpt, self.plan)

    @cached_property
    def _kinds(self) -> dict[int, StageKind]:
        return {}

    @cached_property
    def parts(self) -> list[Parts]:
        """What stands for the slots of each stage; a pair's stands at its first slot."""
        alone = [self._alone(stage) for stage in range(self.plan.pp)]
        return parts_in_pairs(alone, self.orders, self.plan) if self.plan.in_pairs else alone

    def canonical(self, part: SlotOps) -> SlotOps:
        """The first of all parts, of whichever stages, whose ops are the same ones."""
        if part not in self._first_alike:
            sorts = part.graph.columns.sorts
            if sorts not in self._sorts:
                known = self._sort_numbers
                numbers = [known.setdefault(key, len(known)) for key in sorts.keys]
                self._sorts[sorts] = np.array(numbers, dtype=np.int64)
            key = part.graph.key(self._sorts[sorts])
            self._first_alike[part] = self._by_key.setdefault(key, part)
        return self._first_alike[part]

    @cached_property
    def _first_alike(self) -> dict[SlotOps, SlotOps]:
        return {}

    @cached_property
    def _by_key(self) -> dict[tuple[bytes, ...], SlotOps]:
        return {}

    @cached_property
    def _sorts(self) -> dict[Sorts, Indices]:
        return {}

    @cached_property
    def _sort_numbers(self) -> dict[tuple[object, ...], int]:
        return {}

    @cached_property
    def sorts(self) -> list[Sorts]:
        """The sorts of all ops of the stages, program by program."""
        programs = [kind.columns.sorts for kind in self.kinds]
        slots = [part.graph.columns.sorts for parts in self.parts for part in parts.distinct]
        return list(dict.fromkeys([*programs, *slots]))

    @cached_property
    def peaks(self) -> tuple[MemoryUse, ...]:
        """The most memory that each stage uses, which no time changes."""
        count, stages = self.plan.micro_batches, enumerate(zip(self.kinds, self.parts, strict=True))
        return tuple(stage_peak(*own, self.messages, stage, count) for stage, own in stages)

    @cached_property
    def flops(self) -> tuple[int, int]:
        """FLOPs of all ranks in a step, without and with recomputation."""
        count = self.plan.micro_batches
        known = {first: self.kind(first).totals(count) for first in dict.fromkeys(self.firsts)}
        every = [known[first] for first in self.firsts]
        return sum(each.model_flops for each in every), sum(each.flops for each in every)

    def parts_of(self, stage: int) -> Parts:
        """What stands for the slots of one stage, without the others where they do not matter."""
        return self.parts[stage] if self.plan.in_pairs else self._alone(stage)

    def _alone(self, stage: int) -> Parts:
        return self.kind(stage).parts_of(self.orders[stage])

    def network(self, fabric: Fabric, contended: Sequence[InFlight]) -> RankClasses:
        """The network as the stages use it."""
        programs = [kind.program for kind in self.kinds]
        closed = self.plan.vpp > 1 and self.plan.pipeline.schedule not in V_SHAPED
        links = [(f"link{stage}",) for stage in range(self.plan.pp - (not closed))]
        return classes_of(programs, fabric, contended=contended, also=links)


def stage_orders_of(
    gpt: GPT, plan: Plan, forms: Forms, behaviour: StackBehaviour = PLAIN_BEHAVIOUR
) -> StageOrders:
    """The stages' orders, which a session keeps where matmuls have their plain forms."""
    return StageOrders(gpt, plan, forms, behaviour) if forms else _kept(gpt, plan, behaviour)


@session_cached(16)
def _kept(gpt: GPT, plan: Plan, behaviour: StackBehaviour) -> StageOrders:
    return StageOrders(gpt, plan, PLAIN, behaviour)
