"""Sorts of ops: equal in all that time, bytes and FLOPs depend on, in whatever sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topologies.session import Session
from workload.gpt import find_model
from workload.lowering import expect_many, lower, lower_again
from workload.op import Op
from workload.plan_text import parse_plan
from workload.program import Program
from workload.sizes.equal_ops import equal_ops

TINY = replace(find_model("tiny-30k"), layers=6)
PLANS = ("tp=2,z=2,overlap=all", "y=2,z=2,zero=3,recompute=full", "tp=2,y=2,recompute=selective")


def about(op: Op) -> tuple[object, ...]:
    sizes = op.nbytes, op.flops, op.replicas, op.launches
    return op.kind, op.stream, op.axes, op.dtype, op.is_recomputed, sizes, dict(op.attributes)


def programs(text: str) -> list[Program]:
    """Of three sizes of a model: lowered as it is, to formulas, and from these."""
    plan = parse_plan(text, batch=8).with_micro_batches(2)
    with Session():
        return [lower_again(replace(TINY, vocab=n), plan) for n in (64, 96, 128)]


@pytest.mark.parametrize("text", PLANS)
def test_ops_of_one_sort_are_equal_and_few(text: str) -> None:
    found = programs(text)
    assert found[1].outline is found[2].outline is not found[0].outline
    for program in found:
        equal = equal_ops(program.outline.ops)
        for op, sort in zip(program.ops, equal.sort.tolist(), strict=True):
            assert about(op) == about(program.ops[int(equal.first[sort])])
        assert (equal.sort[equal.first] == range(len(equal.first))).all()
        in_layers = [at for at, op in enumerate(program.ops) if op.part.is_layer]
        others = len(program.ops) - len(in_layers)
        assert len(set(equal.sort[in_layers].tolist())) + others == len(equal.first)
        assert len(equal.first) - others < len(in_layers) / 4


def test_ops_of_equal_sizes_in_other_precisions_are_of_sorts_of_their_own() -> None:
    op = next(op for op in programs("tp=2")[0].ops if op.kind == "matmul" and op.part.is_layer)
    assert equal_ops([op, replace(op, dtype="fp8"), op]).sort.tolist() == [0, 1, 0]


def test_evaluated_ops_are_those_of_a_program_that_is_lowered_plainly() -> None:
    _, wide, again = programs("tp=2,y=2,z=2,recompute=full")
    plain = lower(wide.gpt, wide.plan)
    assert any(op.replicas > 1 for op in plain.ops)
    assert wide.ops == plain.ops
    assert again.ops != plain.ops
    assert wide.ops[1:3] == tuple(plain.ops[1:3])
    assert len(wide.ops) == len(plain.ops)


def test_where_many_are_expected_programs_come_from_formulas_at_once() -> None:
    plan = parse_plan(PLANS[0], batch=8).with_micro_batches(2)
    with Session():
        expect_many()
        first, second = (lower_again(replace(TINY, vocab=n), plan) for n in (64, 128))
    assert first.outline is second.outline
    assert first.ops == programs(PLANS[0])[0].ops
