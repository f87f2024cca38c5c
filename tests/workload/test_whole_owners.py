"""Parameters whole on their owners, in place of parts on every rank, by hand."""

from __future__ import annotations

from collections.abc import Sequence

from workload.gpt import GPT
from workload.lowering import lower
from workload.op import BUCKET_SCATTER, PARAMETER_GATHER, Op
from workload.passes.stack import StackBehaviour
from workload.plan import Plan

TINY = GPT.of(
    name="tiny", layers=3, hidden=64, heads=4, ffn=256, sequence=32, vocab=128, tied=False
)  # fmt: skip
PLAN = Plan.of(dp=4, zero=1, batch=8, mbs=1, overlap=("dp",))
APART, WHOLE = (
    lower(TINY, PLAN, behaviour=StackBehaviour(whole_owners=each)) for each in (False, True)
)


def of(ops: Sequence[Op], purpose: str) -> list[Op]:
    return [op for op in ops if op.purpose == purpose]


def test_each_weight_is_broadcast_whole() -> None:
    """Three layers of four matrices, and the tables of both ends, in 2 bytes."""
    sent = of(WHOLE.ops, PARAMETER_GATHER)
    assert {op.kind for op in sent} == {"broadcast"}
    assert len(sent) == 3 * 4 + 2
    assert sum(op.nbytes for op in sent) == (3 * 12 * 64 * 64 + 2 * 128 * 64) * 2
    assert max(op.nbytes for op in sent) == 4 * 64 * 64 * 2
    assert len({op.name for op in WHOLE.ops}) == len(WHOLE.ops)


def test_gradients_are_summed_on_all_ranks() -> None:
    parts, sums = (of(each.ops, BUCKET_SCATTER) for each in (APART, WHOLE))
    assert {op.kind for op in sums} == {"all_reduce"}
    assert [(op.name, op.nbytes, op.stream) for op in sums] == [
        (op.name, op.nbytes, op.stream) for op in parts
    ]


def test_nothing_else_changes() -> None:
    others = [
        [op for op in each.ops if op.purpose not in (BUCKET_SCATTER, PARAMETER_GATHER)]
        for each in (APART, WHOLE)
    ]
    assert others[0] == others[1]
    assert APART.peak.total_bytes == WHOLE.peak.total_bytes
