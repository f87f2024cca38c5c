"""Norms of queries and keys in a program: their place, what they keep, how gains are summed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.analytic import AnalyticCosts
from tests.workload.test_program import op_of, place, program_of
from topologies.machine_files import load_machine
from workload.gpt import find_model

# 16 heads of queries and 8 of keys, each 4 wide; sequences of 16 tokens, 4 in a micro-batch.
LLAMA = replace(find_model("tiny-llama-40k"), layers=1)
QWEN = LLAMA.changed(qk_norm=True)
ROWS, ITEM = 4 * 16, 2


def test_queries_and_keys_are_normalised_between_linear_and_rotation() -> None:
    program = program_of("dp=2", QWEN)
    order = ["qkv.matmul", "qnorm", "knorm", "rope", "attention"]
    assert [place(program, f"m0.l0.{each}") for each in order] == sorted(
        place(program, f"m0.l0.{each}") for each in order
    )
    back = ["attention.grad", "rope.grad", "knorm.grad", "qnorm.grad", "qkv.grad.input"]
    places = [place(program, f"m0.l0.{each}") for each in back]
    assert places == sorted(places)


@pytest.mark.parametrize("x", [1, 2])
def test_a_norm_of_heads_counts_the_traffic_of_a_norm(x: int) -> None:
    program = program_of(f"tp={x},dp=2", QWEN)
    for name, heads in (("qnorm", 16 // x), ("knorm", 8 // x)):
        kept, stats, gain = ROWS * heads * 4 * ITEM, ROWS * heads * 4, 4 * ITEM
        forward, backward = (op_of(program, f"m0.l0.{name}{end}") for end in ("", ".grad"))
        assert forward.nbytes == 2 * kept + stats + gain
        # The gain's gradient is fp32.
        assert backward.nbytes == 3 * kept + stats + gain + 4 * 4
        assert program.buffers[f"m0.l0.{name}.i"].nbytes == kept


def test_a_layer_keeps_its_heads_as_they_were_for_the_backward_pass() -> None:
    """What frameworks keep: a norm's input beside its output, and the statistics in fp32."""
    kept = ROWS * (16 + 8) * (4 * ITEM + 4)
    plain, normed = (program_of("dp=2", gpt).peak.parts["activations"] for gpt in (LLAMA, QWEN))
    assert normed - plain == kept
    two, four = (
        program_of("dp=2", replace(QWEN, layers=n)).peak.parts["activations"]
        - program_of("dp=2", replace(LLAMA, layers=n)).peak.parts["activations"]
        for n in (2, 4)
    )
    assert (two, four) == (2 * kept, 4 * kept)


@pytest.mark.parametrize(
    ("plan", "label", "axes"),
    [
        ("tp=2,z=2,dp=2", "heads.reduce", ("tp", "z", "dp")),
        ("tp=2,z=2,dp=2,sp=true", "rows.reduce", ("tp", "z", "dp")),
        ("y=2,z=2", "small.reduce", ("z",)),
    ],
)
def test_gains_are_summed_over_all_that_have_heads_of_their_own(
    plan: str, label: str, axes: tuple[str, ...]
) -> None:
    summed = op_of(program_of(plan, QWEN), label)
    assert {"l0.qnorm.w.grad", "l0.knorm.w.grad"} <= set(summed.reads)
    assert summed.axes == axes
    assert ("l0.norm1.w.grad" in summed.reads) == (label != "heads.reduce")


def test_a_gain_that_all_hold_counts_once_in_the_norm_of_gradients() -> None:
    program = program_of("tp=2,y=2,z=2", QWEN)
    squares = op_of(program, "norm.squares")
    share = dict(zip(squares.reads, squares.attributes["shares"], strict=True))
    assert share["l0.qnorm.w.grad"] == 1 / 8


def test_a_norm_of_heads_takes_the_time_of_a_norm_of_as_many_bytes() -> None:
    costs = AnalyticCosts(load_machine("dgx-a100"))
    op = op_of(program_of("dp=2", QWEN), "m0.l0.qnorm.grad")
    norm = replace(op, kind="rmsnorm_grad")
    assert costs.seconds(op) == costs.seconds(norm)
    assert costs.seconds(op) > costs.seconds(replace(op, nbytes=op.nbytes // 2))
