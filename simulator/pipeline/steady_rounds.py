"""Omitting micro-batches of a schedule's steady state, exactly.

Times of slots follow from each other by maxima and sums alone. So if over some rounds of the
schedule every slot of every stage is later by the same time than the same slot of the round before,
each further round shifts all that follows by that time again. A round is one micro-batch, or as
many as there are stages where chunks alternate.

Cost: a schedule of at least `2 * lead + ROUNDS` rounds instead of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.pipeline.schedule_sim import SlotSchedule, SlotTimes
from workload.pipeline.schedule import FORWARD, OPPOSED, Slot
from workload.plan import Plan

ROUNDS = 4  # so many must be alike
SlotLine = dict[tuple[str, int], dict[int, tuple[int, int]]]


def folded_plan(plan: Plan) -> Plan:
    """The plan with as many micro-batches as a first try may do with."""
    return _shortened(plan, _lead(plan) + ROUNDS + _lead(plan))


def grown(plan: Plan, small: Plan) -> Plan:
    """The next try, with twice as many micro-batches."""
    return _shortened(plan, 2 * small.micro_batches // _round(plan))


def _shortened(plan: Plan, rounds: int) -> Plan:
    """With so many rounds, or as it is. All of GPipe's forwards come before its backwards, and the
    first pass over the batch before the second, so these have no steady state; those of
    schedules in a V, of paired passes and of uneven turns are not used."""
    count = rounds * _round(plan)
    whole = plan.schedule in ("gpipe", *OPPOSED) or plan.passes > 1 or plan.in_pairs
    whole = whole or not plan.has_even_turns
    if whole or count >= plan.micro_batches:
        return plan
    return plan.with_micro_batches(count)


def _round(plan: Plan) -> int:
    return plan.pp if plan.vpp > 1 else 1


def _lead(plan: Plan) -> int:
    """Rounds by which the first stage may be ahead of its own backward passes."""
    return 3 if plan.vpp > 1 else 2 * plan.pp + 1


@dataclass(frozen=True)
class FoldedSchedule:
    """A schedule of `small` micro-batches that stands for that of `plan`, with its times."""

    plan: Plan
    small: Plan
    schedule: SlotSchedule
    times: Sequence[SlotTimes]

    @property
    def is_steady(self) -> bool:
        """Whether nothing was left out, or nothing but rounds that all are alike."""
        return self.plan == self.small or len(self._shifts) == 1

    @property
    def shift_ticks(self) -> int:
        """How much later the step ends for the rounds that were left out."""
        if self.plan == self.small:
            return 0
        (shift,) = self._shifts
        rounds, left = divmod(self.plan.micro_batches - self.small.micro_batches, _round(self.plan))
        assert not left, "rounds are left out whole"
        return rounds * shift

    @cached_property
    def _shifts(self) -> set[int]:
        """By how much slots of the last steady rounds come later than those a round before; -1
        among them if a stage runs them in another order."""
        count, lead, each = self.small.micro_batches, _lead(self.plan), _round(self.plan)
        last = count - 1 - lead * each
        first = last - (ROUNDS - 1) * each + 1
        shifts = set()
        for order, times in zip(self.schedule.orders, self.times, strict=True):
            for (work, _), line in _lines(order, times).items():
                ahead = lead * each if work == FORWARD else 0
                for m in range(first, last + 1 + ahead):
                    (place, end), (place_before, end_before) = line[m], line[m - each]
                    alike = place - place_before == len(order) // count * each
                    shifts.add(end - end_before if alike else -1)
        return shifts


def _lines(order: Sequence[Slot], times: SlotTimes) -> SlotLine:
    """By work and chunk: each micro-batch's place in the order, and its end."""
    lines: SlotLine = {}
    for place, (slot, end) in enumerate(zip(order, times.end, strict=True)):
        lines.setdefault((slot.work, slot.chunk), {})[slot.micro_batch] = place, end
    return lines
