"""Gated attention, worked out by hand: widths, parameters, FLOPs, bytes, and what is refused."""

from __future__ import annotations

import pytest

from workload.errors import ModelError
from workload.gpt import GPT
from workload.lowering import lower
from workload.plan_text import parse_plan

PLAIN = GPT.of(
    name="two",
    layers=2,
    hidden=8,
    heads=2,
    kv_heads=1,
    ffn=32,
    sequence=4,
    vocab=10,
    biases=False,
    norm="rmsnorm",
    positions="rope",
)
GATED = PLAIN.changed(output_gate=True)


def test_the_gate_is_as_wide_as_the_heads_of_queries_together() -> None:
    assert (PLAIN.first_bands, GATED.first_bands) == ((8, 4, 4), (8, 4, 4, 8))
    assert GATED.parameters - PLAIN.parameters == 2 * 8 * 8  # layers, hidden, gate
    # Of a step of 3 sequences of 4 tokens: forward and twice as much backward.
    assert GATED.model_flops(3) - PLAIN.model_flops(3) == 3 * (3 * 4) * 2 * (2 * 8 * 8)


def test_with_biases_the_gate_has_one_too() -> None:
    more = [gpt.changed(qkv_bias=True).parameters - gpt.parameters for gpt in (PLAIN, GATED)]
    assert more == [2 * 16, 2 * 24]


def test_the_next_linear_reads_the_product_and_the_core_keeps_its_output() -> None:
    program = lower(GATED.changed(kv_heads=2), parse_plan("tp=2,mbs=1", batch=1))
    ops = {op.name: op for op in program.ops}
    gate, back = ops["m0.l0.output_gate"], ops["m0.l0.output_gate.grad"]
    assert gate.reads == ("m0.l0.attention.o", "m0.l0.qkv.o")
    assert ops["m0.l0.out.matmul"].reads[0] == gate.writes[0]
    assert program.buffers["m0.l0.qkv.o"].shape == (program.buffers[gate.writes[0]].shape[0], 16)
    assert back.writes == ("m0.l0.output_gate.di", "m0.l0.attention.dqkv")
    core = ops["m0.l0.attention.grad"]
    assert core.reads[0] == back.writes[0]
    assert core.writes == back.writes[1:]
    # A rank's output is 4 columns: read, gate read, written; backward three read, two written.
    one = program.buffers["m0.l0.attention.o"].nbytes
    assert (gate.nbytes, back.nbytes) == (3 * one, 5 * one)


def test_recomputing_the_core_keeps_the_product() -> None:
    plan = parse_plan("recompute=selective,mbs=1", batch=1)
    names = [op.name for op in lower(GATED, plan).ops]
    assert len([name for name in names if name.endswith("output_gate")]) == GATED.layers


def test_latent_attention_has_no_gate() -> None:
    with pytest.raises(ModelError, match="output_gate=true cannot be combined with kv_rank"):
        GATED.changed(kv_rank=4, rope_width=2, kv_heads=0)
