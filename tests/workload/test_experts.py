"""Mixture of experts in models, plans and programs: counted by hand, and refused where wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.messages import names
from workload.errors import ModelError, PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.layout import NORMAL, RESIDUAL
from workload.lowering import lower
from workload.models import moe
from workload.op import BACK, EXPERT_COMBINE, EXPERT_DISPATCH, FOR_NODES, THERE, Op
from workload.plan_text import parse_plan
from workload.program import Program
from workload.stages import like_stages

TWO = GPT.of(
    name="two",
    layers=2,
    hidden=32,
    heads=4,
    ffn=64,
    sequence=16,
    vocab=64,
    norm="rmsnorm",
    activation="swiglu",
    positions="rope",
    biases=False,
    experts=8,
    topk=2,
    expert_ffn=48,
)
ROWS = 2 * 16  # tokens of a rank: mbs=2


def program_of(text: str, gpt: GPT = TWO) -> Program:
    return lower(gpt, parse_plan(f"mbs=2,overlap=none,{text}"))


def of_layer(program: Program, label: str) -> Op:
    return next(op for op in program.ops if op.part.layer == 1 and op.label == label)


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [("mixtral-8x7b", 46_702_792_704, 12_879_925_248), ("mixtral-8x22b", 140.6e9, 39.2e9)],
)
def test_parameters_are_those_of_the_released_checkpoints(
    name: str, parameters: float, active: float
) -> None:
    """Exactly for Mixtral 8x7B (config.json); 141B and 39B as Mistral AI says of 8x22B."""
    gpt = find_model(name)
    assert gpt.parameters == pytest.approx(parameters, rel=1e-3 if parameters % 1e5 == 0 else 0)
    assert gpt.active_parameters == pytest.approx(active, rel=2e-3)


def test_a_layers_weights_are_those_of_all_experts_and_its_flops_those_of_the_chosen() -> None:
    router, expert = 32 * 8, 3 * 32 * 48
    attention = 4 * 32 * 32
    layer = attention + router + 8 * expert + 2 * 32
    assert TWO.parameters == 2 * layer + 64 * 32 + 32
    per_token = 2 * (attention + router + 2 * expert) + 4 * 16 * 32
    assert TWO.model_flops(1) == 3 * 16 * (2 * per_token + 2 * 32 * 64)
    assert TWO.changed(shared_ffn=16).parameters - TWO.parameters == 2 * 3 * 32 * 16


def test_layers_with_experts_stand_behind_dense_ones_or_between_them() -> None:
    assert [moe.has_experts(TWO.changed(layers=4, dense_layers=1), n) for n in range(4)] == [
        False,
        True,
        True,
        True,
    ]
    every_other = TWO.changed(layers=4, expert_every=2)
    assert [moe.has_experts(every_other, n) for n in range(4)] == [False, True, False, True]
    assert moe.layers_with_experts(every_other) == 2
    stages = like_stages(TWO.changed(layers=4, dense_layers=1), parse_plan("pp=4,batch=4"))
    assert stages == [0, 1, 1, 3]


@pytest.mark.parametrize(
    "plan",
    [
        "dp=4,ep=4",
        "tp=2,dp=2,ep=2",
        "tp=2,dp=2,ep=4,etp=1,sp=true",
        "y=2,z=2,dp=2,ep=2,recompute=full",
        "dp=4,ep=2,zero=3",
    ],
)
def test_a_program_has_the_models_flops(plan: str) -> None:
    program = program_of(plan)
    assert program.model_flops == TWO.model_flops(program.plan.batch)


def test_a_rank_sends_each_token_to_its_experts_and_gets_as_many_back() -> None:
    program = program_of("dp=4,ep=4")
    sent = of_layer(program, "dispatch.exchange")
    assert (sent.kind, sent.axes, sent.purpose) == ("all_to_all", ("ep",), EXPERT_DISPATCH)
    assert sent.nbytes == 2 * ROWS * 32 * 2
    back = of_layer(program, "combine.exchange")
    assert (back.nbytes, back.purpose) == (sent.nbytes, EXPERT_COMBINE)
    up = of_layer(program, "experts.up.matmul")
    assert up.flops == 2 * (2 * ROWS) * 32 * (2 * 48)
    assert up.mnk == (2 * ROWS // 2, 96, 32)


def test_only_the_matrices_that_end_in_the_stream_begin_smaller_by_its_depth() -> None:
    layouts = program_of("dp=2", TWO.changed(shared_ffn=16)).layouts
    ends = ("out", "experts.down", "shared.down")
    starts = {name: RESIDUAL if name in ends else NORMAL
              for name in ("qkv", "experts.up", "shared.up", *ends)}  # fmt: skip
    assert {name: layouts[f"l1.{name}.w"].starts for name in starts} == starts


def test_with_a_capacity_every_expert_has_as_many_places() -> None:
    """ceil(0.7 x 32 tokens x 2 / 8 experts) = 6 places for each of 8 experts."""
    program = program_of("dp=4,ep=4", TWO.changed(capacity=0.7))
    assert of_layer(program, "dispatch.exchange").nbytes == 8 * 6 * 32 * 2
    assert "dispatch.counts.exchange" not in {op.label for op in program.ops}
    assert "dispatch.counts.exchange" in {op.label for op in program_of("dp=4,ep=4").ops}


def test_ranks_of_x_route_rows_of_their_own_where_they_hold_other_experts() -> None:
    program = program_of("tp=2,dp=2,ep=4,etp=1,sp=true")
    sent = of_layer(program, "dispatch.exchange")
    assert (sent.axes, sent.nbytes) == (("tp", "ep"), 2 * (ROWS // 2) * 32 * 2)
    whole = of_layer(program_of("tp=2,dp=2,ep=2,sp=true"), "dispatch.exchange")
    assert (whole.axes, whole.nbytes) == (("ep",), 2 * ROWS * 32 * 2)


def test_gradients_of_experts_are_summed_over_the_ranks_that_hold_the_same() -> None:
    program = program_of("dp=4,ep=2")
    sums = {
        op.label: op.axes for op in program.ops if op.kind == "all_reduce" and op.micro_batch < 0
    }
    assert sums["grads.reduce"] == ("dp",)
    assert sums["experts.grads.reduce"] == ("edp",)
    held = program.buffers["l1.experts.up.w"]
    assert held.elements == 4 * 32 * 96
    assert held.replicas == 2
    grid = program.plan.grid
    assert grid.groups("ep").tolist() == [[0, 1], [2, 3]]
    assert grid.groups("edp").tolist() == [[0, 2], [1, 3]]


def test_zero_shards_states_of_experts_over_their_own_copies() -> None:
    program = program_of("dp=4,ep=2,zero=1")
    assert program.buffers["l1.experts.up.w.m"].elements == 4 * 32 * 96 // 2
    assert program.buffers["l1.qkv.w.m"].elements == 32 * 96 // 4


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"topk": 9}, ("topk=9", "experts=8")),
        ({"topk": 0}, ("experts=8",)),
        ({"experts": 0}, ("topk=2", "experts")),
        ({"capacity": 9.0}, ("capacity=9.0", "0")),
        ({"dense_layers": 3}, ("dense_layers=3", "layers=2")),
        ({"router": "hash"}, ("router", "hash", "softmax", "softmax-topk", "sigmoid")),
    ],
)
def test_a_model_with_impossible_experts_is_refused(
    fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError, check=names(*named)):
        TWO.changed(**fields)


def test_a_model_without_experts_takes_no_axis_of_them() -> None:
    with pytest.raises(PlanCannotRunError, check=names("tiny-30k", "none")):
        program_of("dp=4,ep=2", find_model("tiny-30k"))


def test_once_per_node_goes_a_row_not_a_score() -> None:
    """There and, from the experts, back; in the backward pass the other way round. A score is of
    one expert, and goes as it is."""
    program = lower(TWO, parse_plan("dp=2,ep=2,dispatcher=once_per_node,mbs=1"))
    sent = [op for op in program.ops if op.kind == "all_to_all" and op.part.layer == 0]
    found = {op.label.removesuffix(".exchange"): op.attributes.get(FOR_NODES) for op in sent}
    assert found == {
        "dispatch.counts": None,
        "dispatch": THERE,
        "dispatch.scores": None,
        "combine": BACK,
        "combine.grad": THERE,
        "dispatch.grad": BACK,
        "dispatch.scores.grad": None,
    }
