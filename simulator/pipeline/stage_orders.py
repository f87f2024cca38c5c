"""The orders of slots of all stages, and the kinds of stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.engine.columns import Sorts
from simulator.pipeline.schedule_sim import SlotSchedule
from simulator.pipeline.slot_ops import SlotOps, StageKind, kind_of
from simulator.pipeline.slot_pairs import parts_in_pairs
from simulator.ranks.classes import Fabric, InFlight, RankClasses, classes_of
from topologies.session import session_cached
from workload.gpt import GPT
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import NO_HABITS, Habits
from workload.pipeline.schedule import OPPOSED, V_SHAPED, Slot
from workload.pipeline.stages import like_stages, stage_slots
from workload.plan import Plan
from workload.sizes.arrays import Indices


@dataclass(frozen=True)
class StageOrders:
    """The stages' orders of slots, for `plan` shortened to the micro-batches of `small`."""

    gpt: GPT
    plan: Plan
    small: Plan
    forms: Forms
    habits: Habits = NO_HABITS

    @cached_property
    def orders(self) -> list[tuple[Slot, ...]]:
        """Each stage's slots."""
        return [stage_slots(self.small, stage) for stage in range(self.small.pp)]

    @cached_property
    def kinds(self) -> list[StageKind]:
        """Each stage's kind."""
        return [self.kind(stage) for stage in range(self.small.pp)]

    def kind(self, stage: int) -> StageKind:
        """One stage's kind, that of the first like it."""
        first = self.firsts[stage]
        if first not in self._kinds:
            how = self.orders[first], self.forms, self.habits
            self._kinds[first] = kind_of(self.gpt, self.small, first, *how)
        return self._kinds[first]

    @cached_property
    def firsts(self) -> list[int]:
        """For each stage the first that is like it."""
        return like_stages(self.gpt, self.small)

    @cached_property
    def _kinds(self) -> dict[int, StageKind]:
        return {}

    @cached_property
    def parts(self) -> list[list[SlotOps]]:
        """What stands for each slot of each stage; a pair's stands at its first slot."""
        alone = [self._alone(stage) for stage in range(self.small.pp)]
        return parts_in_pairs(alone, self.orders, self.small) if self.small.in_pairs else alone

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

    def parts_of(self, stage: int) -> list[SlotOps]:
        """The same for one stage, without the others where they do not matter."""
        return self.parts[stage] if self.small.in_pairs else self._alone(stage)

    def _alone(self, stage: int) -> list[SlotOps]:
        return self.kind(stage).parts_of(self.orders[stage])

    def timed(
        self, ticks: Sequence[Sequence[int]], links: Sequence[tuple[int, int]], messages: str
    ) -> SlotSchedule:
        """The schedule, given for how long each stage's slots and links are busy, and the order of
        messages by its name."""
        return SlotSchedule(
            orders=self.orders,
            ticks=ticks,
            links=links,
            messages=messages,
            micro_batches=self.small.passes * self.small.micro_batches,
            in_v=self.plan.schedule in OPPOSED,
            paired=self.plan.in_pairs,
        )

    def network(self, fabric: Fabric, contended: Sequence[InFlight]) -> RankClasses:
        """The network as the stages use it."""
        programs = [kind.program for kind in self.kinds]
        closed = self.plan.vpp > 1 and self.plan.schedule not in V_SHAPED
        links = [(f"link{stage}",) for stage in range(self.plan.pp - (not closed))]
        return classes_of(programs, fabric, contended=contended, also=links)


def stage_orders_of(
    gpt: GPT, plan: Plan, small: Plan, forms: Forms, habits: Habits = NO_HABITS
) -> StageOrders:
    """The stages' orders, which a session keeps where matmuls have their plain forms."""
    if forms:
        return StageOrders(gpt, plan, small, forms, habits)
    return _kept(gpt, plan, small, habits)


@session_cached(16)
def _kept(gpt: GPT, plan: Plan, small: Plan, habits: Habits) -> StageOrders:
    return StageOrders(gpt, plan, small, PLAIN, habits)
