"""Models with latent attention: their counts, their program, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.messages import names
from workload.errors import ModelError, PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.plan import Plan
from workload.program import Program

# Heads of 3 + 2 columns, values of 4.
SMALL = GPT.of(
    name="small",
    layers=1,
    hidden=8,
    heads=2,
    ffn=16,
    sequence=4,
    vocab=10,
    norm="rmsnorm",
    activation="swiglu",
    positions="rope",
    biases=False,
    tied=False,
    head_width=3,
    q_rank=6,
    kv_rank=5,
    rope_width=2,
    value_width=4,
)


def program_of(gpt: GPT = SMALL, **plan: Any) -> Program:
    return lower(gpt, Plan.of(**{"batch": 4, "mbs": 1, **plan}))


@pytest.mark.parametrize(
    ("name", "released"),
    [
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v2", 235_741_434_880),
        ("deepseek-v3", 671_026_419_200),
        ("kimi-k2", 1_026_408_232_448),
    ],
)
def test_a_preset_has_the_parameters_of_the_released_checkpoint(name: str, released: int) -> None:
    assert find_model(name).parameters == released


def test_moonlight_has_the_parameters_that_its_paper_counts_without_embeddings() -> None:
    """Liu et al. (2502.16982), Table 3: 15.29B, of which a token passes 2.24B."""
    gpt = find_model("moonlight-16b-a3b")
    tables = 2 * gpt.vocab * gpt.hidden
    assert round((gpt.parameters - tables) / 1e9, 2) == 15.29
    assert round((gpt.active_parameters - tables) / 1e9, 2) == 2.24


@pytest.mark.parametrize(("name", "active"), [("deepseek-v2", 21e9), ("deepseek-v3", 37e9)])
def test_a_token_passes_as_many_parameters_as_the_report_says(name: str, active: float) -> None:
    gpt = find_model(name)
    embedding = gpt.vocab * gpt.hidden  # which the reports leave out
    assert gpt.active_parameters - embedding == pytest.approx(active, rel=0.02)


def test_parameters_and_flops_of_a_small_model_by_hand() -> None:
    # q 8*6 + 6*10, kv 8*(5+2) + 5*2*(3+4), out 2*4*8; gate, up and down 8*48; gains.
    weights = 48 + 60 + 56 + 70 + 64 + 384
    assert SMALL.parameters == weights + 6 + 5 + 2 * 8 + 8 + 2 * 10 * 8
    # Scores have 2 heads of 5 columns, the context 2 of 4.
    square, head = 2 * 4 * (10 + 8), 2 * 8 * 10
    assert SMALL.model_flops(3) == 3 * (3 * 4) * (2 * weights + square + head)
    without = SMALL.changed(q_rank=0)
    assert without.parameters == SMALL.parameters - 108 - 6 + 8 * 10


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3"])
@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"tp": 4, "sp": True},
        {"tp": 2, "z": 2, "attention": "unfused", "recompute": "selective"},
        {"tp": 2, "dp": 2, "ep": 2, "recompute": "full"},
    ],
)
def test_a_program_does_the_models_flops(name: str, plan: dict[str, Any]) -> None:
    gpt = find_model(name).changed(layers=2, dense_layers=1)
    program = program_of(gpt, **plan)
    ranks = program.plan.grid.ranks
    done = sum(op.flops / op.replicas for op in program.ops if not op.is_beyond_model)
    assert done * ranks == gpt.model_flops(4)


def test_what_leads_down_is_in_copies_over_x_and_what_leads_up_is_split_by_heads() -> None:
    program = program_of(tp=2)
    shapes = {
        name: program.buffers[f"l0.{name}.w"].shape
        for name in ("q_down", "q_up", "kv_down", "kv_up", "out")
    }
    assert shapes == {
        "q_down": (8 * 6,),
        "q_up": (6 * 5,),
        "kv_down": (8 * 7,),
        "kv_up": (5 * 7,),
        "out": (4 * 8,),
    }
    copies = [program.buffers[f"l0.{name}.w"].replicas for name in ("q_down", "q_up")]
    assert copies == [2, 1]
    ops = {op.name: op for op in program.ops}
    assert ops["m0.l0.q_down.matmul"].replicas == ops["m0.l0.kv_down.matmul"].replicas == 2
    summed = [op.name for op in program.ops if op.kind == "all_reduce" and op.axes == ("tp",)]
    # The one part of the keys with positions has a gradient of each rank's heads.
    assert "m0.l0.kv.positions.grad.reduce" in summed


def test_with_sequence_parallelism_narrow_rows_are_gathered_and_gradients_summed_over_x() -> None:
    program = program_of(tp=2, dp=2, sp=True)
    widths = {
        op.label: program.buffers[op.writes[0]].shape
        for op in program.ops
        if op.kind == "all_gather" and op.name.startswith("m0.l0.") and "grad" not in op.label
    }
    assert {
        label: widths[label] for label in widths if label.split(".")[0] in ("q_up", "kv_up")
    } == {
        "q_up.rows.gather": (4, 6),
        "kv_up.rows.gather": (4, 5),
    }
    assert widths["kv.positions.rows.gather"] == (4, 2)
    assert not any(label.startswith(("q_down", "kv_down")) for label in widths)
    ops = {op.name: op for op in program.ops}
    assert ops["m0.l0.q_down.matmul"].attributes["m"] == 2
    assert ops["m0.l0.q_down.matmul"].replicas == 1
    over_both = [op for op in program.ops if op.axes == ("tp", "dp") and op.part.is_layer]
    assert {name for op in over_both for name in op.reads} == {
        "l0.q_down.w.grad",
        "l0.kv_down.w.grad",
    }


def test_what_is_kept_for_the_backward_pass_is_what_megatron_keeps() -> None:
    """Per token: the compressed numbers before and behind their norms (2 * 11), the norms' two
    statistics, queries and keys of 2 * 5 columns each and values of 2 * 4, the context of 2 * 4,
    its log-sum-exp in each head."""
    program = program_of(precision="fp64", batch=1, overlap=())
    before = next(i for i, op in enumerate(program.ops) if op.name == "m0.l0.q_down.matmul")
    after = next(i for i, op in enumerate(program.ops) if op.name == "m0.l0.out.matmul")
    first, last = (program.memory[i].total_bytes for i in (before, after))
    kept = 2 * 11 + 2 + 2 * 10 + 8 + 8 + 2
    assert (last - first) / (8 * 4) == kept - 6 + 8  # both ends count what they write themselves


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"kv_rank": 0, "head_width": 4}, ("q_rank=6", "kv_rank")),
        ({"positions": "alibi"}, ("kv_rank=5", "positions=rope")),
        ({"rope_width": 0}, ("kv_rank=5", "rope_width", "0")),
        ({"rope_width": 3}, ("rope_width", "3")),
        ({"kv_heads": 1}, ("kv_heads=1", "kv_rank")),
        ({"biases": True}, ("biases=false",)),
        ({"q_rank": -1}, ("q_rank=-1", "0")),
        ({"kv_rank": 10**6}, ("kv_rank=1000000", "100,000")),
    ],
)
def test_what_does_not_go_together_is_refused(
    given: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError, check=names(*named)):
        SMALL.changed(**given)


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ({"y": 2}, ("y=2", "kv_rank=5", "y=1")),
        ({"optimizer": "mezo"}, ("optimizer=mezo",)),
        ({"tp": 4}, ("tp=4", "heads=2")),
    ],
)
def test_plans_that_cannot_run_are_refused_by_name(
    plan: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(PlanCannotRunError, check=names(*named)):
        program_of(**plan)
