"""A session keeps programs: the same question has the same one, and only so many are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.messages import names
from tests.simulator.worlds import TINY
from topologies.session import Session
from workload.errors import PlanCannotRunError
from workload.lowering import kept_program, kept_programs, lower
from workload.passes.stack import StackBehaviour
from workload.plan import Plan

PLAN = Plan(dp=2, batch=4, mbs=1)


def test_within_a_session_a_program_is_lowered_once() -> None:
    with Session():
        first = kept_program(TINY, PLAN)
        assert kept_program(replace(TINY), replace(PLAN)) is first
    assert kept_program(TINY, PLAN) is not first
    assert first.ops == lower(TINY, PLAN).ops


@pytest.mark.parametrize(
    ("gpt", "plan", "behaviour"),
    [
        (replace(TINY, hidden=2 * TINY.hidden), PLAN, StackBehaviour()),
        (TINY, replace(PLAN, mbs=2), StackBehaviour()),
        (TINY, PLAN, StackBehaviour(fused=("gelu",))),
    ],
)
def test_another_question_has_a_program_of_its_own(
    gpt: object, plan: Plan, behaviour: StackBehaviour
) -> None:
    with Session():
        first = kept_program(TINY, PLAN)
        other = kept_program(gpt, plan, behaviour=behaviour)  # type: ignore[arg-type]
        assert other is not first
        assert other.ops != first.ops


def test_the_programs_that_were_asked_for_longest_ago_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Session():
        first = kept_program(TINY, PLAN)
        monkeypatch.setattr(kept_programs, "MOST_OPS", 2 * len(first.ops) + 1)
        second = kept_program(replace(TINY, vocab=2 * TINY.vocab), PLAN)
        assert kept_program(TINY, PLAN) is first
        kept_program(replace(TINY, vocab=4 * TINY.vocab), PLAN)
        assert kept_program(TINY, PLAN) is first
        assert kept_program(second.gpt, PLAN) is not second


def test_a_program_larger_than_the_room_is_kept_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_programs, "MOST_OPS", 1)
    with Session():
        assert kept_program(TINY, PLAN) is kept_program(TINY, PLAN)


def test_a_plan_that_does_not_divide_is_refused_as_ever() -> None:
    with pytest.raises(PlanCannotRunError, check=names("tp=3", "heads")):
        kept_program(TINY, Plan(tp=3, batch=2, mbs=2))
