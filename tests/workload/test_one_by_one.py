"""Gradients of each parameter summed by a collective of their own."""

from __future__ import annotations

from tests.workload.test_stack import PLAN, TINY
from workload.lowering import lower
from workload.op import BUCKET_REDUCE, Op
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.program import Program


def sums(found: Program) -> list[Op]:
    return [op for op in found.ops if op.purpose == BUCKET_REDUCE]


def program(plan: Plan, *, alone: bool) -> Program:
    return lower(TINY, plan, behaviour=StackBehaviour(one_by_one=alone))


def test_each_gradient_has_a_collective_of_its_own_and_all_bytes_stay() -> None:
    plan = PLAN.changed(overlap=())
    whole, own = (sums(program(plan, alone=alone)) for alone in (False, True))
    assert len(whole) == 1
    assert len(own) == len(whole[0].reads) > 1
    assert [op.reads for op in own] == [(name,) for name in whole[0].reads]
    assert sum(op.nbytes for op in own) == whole[0].nbytes
    assert len({op.name for op in own}) == len(own)


def test_buckets_that_an_overlap_moved_stay_as_they_are() -> None:
    plan = PLAN.changed(overlap=("dp",))
    assert sums(program(plan, alone=True)) == sums(program(plan, alone=False))
