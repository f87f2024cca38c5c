"""Rows of experts that fp8 wants in multiples: where they are copied."""

from __future__ import annotations

from workload.gpt import GPT
from workload.lowering import lower
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.recipes.cast_kernels import CastKernels

TINY = GPT.of(name="tiny", layers=2, hidden=64, heads=4, ffn=256, sequence=32, vocab=128)


def test_rows_of_experts_in_fp8_are_copied_to_padded_places_and_back() -> None:
    """In front of the first linear of each pass and behind its last one, each element read and
    written in 16 bits: of 32 tokens two rows each, as wide as the stream outside of both linears.
    Not where every expert has as many places as the others."""
    gpt = TINY.changed(experts=4, topk=2, expert_ffn=96, positions="rope", biases=False)
    plan = Plan.of(dp=2, ep=2, batch=2, mbs=1, recipe="fp8")
    behaviour = StackBehaviour(casts=CastKernels(pads=True))
    found = lower(gpt, plan, behaviour=behaviour)
    order = [op.label for op in found.ops if op.micro_batch == 0 and op.part.layer == 1]
    copies = [op for op in found.ops if op.kind in ("pad_rows", "unpad_rows")]
    assert len(copies) == gpt.layers * 4
    for op in copies:
        linear, behind = op.label.removesuffix(f".{op.kind}"), op.kind == "unpad_rows"
        assert (order.index(op.label) > order.index(linear)) == behind
        assert op.reads == op.writes
        assert op.nbytes == (2 + 2) * (32 * 2) * 64
    even = lower(gpt.changed(capacity=1.0), plan, behaviour=behaviour)
    assert not [op for op in even.ops if op.kind == "pad_rows"]
