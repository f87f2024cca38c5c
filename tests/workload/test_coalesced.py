"""One collective of all parameters in place of one for each part, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from workload.gpt import GPT
from workload.lowering import lower
from workload.op import BUCKET_SCATTER, PARAMETER_GATHER, Op
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.program import Program

TINY = GPT.of(
    name="tiny", layers=3, hidden=64, heads=4, ffn=256, sequence=32, vocab=128, tied=False
)  # fmt: skip
AT_ONCE = StackBehaviour(coalesced=True)


def plan(pp: int) -> Plan:
    return Plan.of(dp=4, zero=1, batch=8, mbs=1, overlap=(), pp=pp)


def of(found: Program, purpose: str) -> list[Op]:
    return [op for op in found.ops if op.purpose == purpose]


def total(ops: Sequence[Op]) -> int:
    return sum(op.nbytes for op in ops)


@pytest.mark.parametrize("pp", [1, 3])
def test_parameters_are_gathered_in_one_collective_of_as_many_bytes(pp: int) -> None:
    """Three layers of 12 h^2 weights of 2 bytes, and the tables of the ends where they are."""
    layers = 3 // pp * 12 * 64 * 64 * 2
    tables = (2 if pp == 1 else 1) * 128 * 64 * 2
    apart, once = (lower(TINY, plan(pp), behaviour=each) for each in (StackBehaviour(), AT_ONCE))
    (gather,) = of(once, PARAMETER_GATHER)
    assert len(of(apart, PARAMETER_GATHER)) == 3 // pp + (2 if pp == 1 else 1)
    assert gather.nbytes == total(of(apart, PARAMETER_GATHER)) == layers + tables
    assert {*gather.writes} == {name for op in of(apart, PARAMETER_GATHER) for name in op.writes}
    assert total(of(once, BUCKET_SCATTER)) == total(of(apart, BUCKET_SCATTER))


def test_the_one_gather_follows_every_update_and_the_rest_stays_as_it_was() -> None:
    apart, once = (lower(TINY, plan(1), behaviour=each) for each in (StackBehaviour(), AT_ONCE))
    names = [op.name for op in once.ops]
    (gather,) = of(once, PARAMETER_GATHER)
    assert max(names.index(op.name) for op in once.ops if op.kind == "adamw") < names.index(
        gather.name
    )
    gone = {op.name for op in apart.ops} - {*names}
    assert gone == {op.name for op in of(apart, PARAMETER_GATHER)} - {gather.name}
    assert once.peak.total_bytes == apart.peak.total_bytes


def test_collectives_that_run_beside_others_stay_apart() -> None:
    beside = Plan.of(dp=4, zero=1, batch=8, mbs=1, overlap=("dp",))
    apart, once = (lower(TINY, beside, behaviour=each) for each in (StackBehaviour(), AT_ONCE))
    assert [op.name for op in once.ops] == [op.name for op in apart.ops]
