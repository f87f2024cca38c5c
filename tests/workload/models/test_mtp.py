"""The module that predicts a second token: counted by hand, and refused where it cannot be."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from executor.kernels.vocabulary import next_targets
from executor.launching.task_specs import AdamW
from executor.rank_context import RankContext
from tests.messages import names
from tests.workload.models.test_hybrids import FOUR
from tests.workload.test_experts import TWO
from workload.errors import ModelError, PlanCannotRunError
from workload.gpt import GPT, find_model
from workload.grid import Grid
from workload.lowering import lower
from workload.lowering.evaluation import lower_forward
from workload.op import Op
from workload.plan_text import parse_plan

BOTH = TWO.changed(mtp_layers=1)
APART = replace(BOTH, tied=False)
SUPER = FOUR.changed(mtp_layers=2, mtp_pattern="*E", mtp_shared=True)
OWN = SUPER.changed(mtp_shared=False)


def test_the_module_has_one_more_layer_a_linear_of_two_streams_and_three_norms() -> None:
    layer = 4 * 32 * 32 + 32 * 8 + 8 * 3 * 32 * 48 + 2 * 32
    assert BOTH.parameters - TWO.parameters == layer + 2 * 32 * 32 + 3 * 32
    assert BOTH.active_parameters == TWO.active_parameters


def test_deepseek_v3_and_its_module_are_those_of_the_released_checkpoint() -> None:
    """684,489,845,504 with the copies of embedding and classifier, as the files have them without
    the scales of fp8: 671,026,419,200 of the main model, and layer 61."""
    gpt = find_model("deepseek-v3-mtp")
    attention = 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 257 * 3 * 7168 * 2048 + 256 * 7168 + 256
    norms = 1536 + 512 + 2 * 7168 + 3 * 7168
    assert gpt.parameters == 671_026_419_200 + attention + experts + norms + 2 * 7168**2


@pytest.mark.parametrize(
    ("gpt", "plan"),
    [
        *product([APART, SUPER, OWN], ["tp=2,sp=true", "z=2,dp=2,zero=1", "recompute=full"]),
        *product([APART, OWN], ["cp=2,dp=2"]),
        (SUPER, "tp=2,y=2"),
    ],
)
def test_a_program_has_the_models_flops_and_parameters(gpt: GPT, plan: str) -> None:
    program = lower(gpt, parse_plan(f"mbs=2,overlap=none,{plan}"))
    assert program.model_flops == gpt.model_flops(program.plan.batch)
    held = [each for each in program.buffers.values() if each.role == "parameters"]
    copies = {each.name: each.replicas / program.plan.grid.ranks for each in held}
    assert sum(each.elements / copies[each.name] for each in held) == gpt.parameters


def test_two_depths_count_twice_in_flops_and_once_in_parameters_where_they_share() -> None:
    """A depth behind a hybrid has 4 x 32 x 32 of attention, a router of 32 x 4, experts of 2 x 32 x
    16 each, of which a token passes two, a shared one of 2 x 32 x 8, the linear, and five norms."""
    attention, router, shared, expert = 4 * 32 * 32, 32 * 4, 2 * 32 * 8, 2 * 32 * 16
    linear, norms = 2 * 32 * 32, 5 * 32
    one = attention + router + shared + 4 * expert + linear + norms
    assert SUPER.parameters - FOUR.parameters == one
    assert OWN.parameters - FOUR.parameters == 2 * one
    passed = attention + router + shared + 2 * expert + linear + 32 * 64
    scores = 2 * 16 * (32 + 32)
    more = 2 * 3 * 16 * (2 * passed + scores)
    assert SUPER.model_flops(1) - FOUR.model_flops(1) == more
    assert OWN.model_flops(1) == SUPER.model_flops(1)


def test_losses_of_all_depths_together_have_the_weight_of_the_module() -> None:
    program = lower(SUPER.changed(mtp_loss=0.5), parse_plan("batch=1,overlap=none"))
    for kind in ("loss_mean", "loss_grad"):
        ops = [op for op in program.ops if op.kind == kind]
        assert [op.attributes.get("weight", 1.0) for op in ops] == [1.0, 0.25, 0.25]


def test_gradients_of_shared_weights_are_added_from_the_last_depth_to_the_first() -> None:
    program = lower(SUPER, parse_plan("mbs=2,batch=4,overlap=none"))
    own = [op for op in program.ops if "l4.qkv.w.grad" in op.writes and op.kind == "accumulate"]
    assert [(op.micro_batch, str(op.part)) for op in own] == [
        (0, "l6"),
        (0, "l4"),
        (1, "l6"),
        (1, "l4"),
    ]
    assert [op.attributes["first"] for op in own] == [True, False, False, False]
    assert "l6.qkv.w" not in program.layouts


def test_presets_with_depths_have_the_parameters_of_their_checkpoints() -> None:
    """32,913,266,240 and 123,611,033,088 elements: verification cards of NVIDIA-NeMo/
    Megatron-Bridge@067f987 (examples/model_verification_cards)."""
    assert find_model("nemotron-3.5-lightning").parameters == 32_913_266_240
    assert find_model("nemotron-3-super").parameters == 123_611_033_088


def test_the_module_and_a_copy_of_the_table_are_on_the_last_stage() -> None:
    plan = parse_plan("pp=2,mbs=1,batch=2,overlap=none")
    first, last = (lower(APART, plan, stage) for stage in (0, 1))
    assert "l2.eh_proj.w" in last.layouts
    assert not any(name.startswith("l2.") for name in first.layouts)
    for program in (first, last):
        assert "embed.w" in program.layouts
        assert [op.axes for op in program.ops if op.label == "tied.reduce"] == [("ends",)]
    assert "embed.w" not in lower(replace(TWO, tied=False), plan, 1).layouts


IN_V = "pp=2,vpp=2,schedule=zb-v,mbs=1,batch=4,overlap=none"


def test_in_a_v_the_embedding_is_at_hand_and_the_last_micro_batch_ends_on_the_first_stage() -> None:
    first, last = (lower(replace(APART, layers=4), parse_plan(IN_V), stage) for stage in (0, 1))
    assert {"l4.eh_proj.w", "embed.w", "head.w"} <= set(first.layouts)
    assert not {"l4.eh_proj.w", "embed.w", "head.w"} & set(last.layouts)
    assert not any(op.label == "tied.reduce" for op in (*first.ops, *last.ops))
    sums = [op for op in first.ops if "embed.w.grad" in op.writes and op.kind == "accumulate"]
    assert [op.attributes["first"] for op in sums] == [True] + 7 * [False]
    assert sums[0].label == "mtp.embed.grad.accumulate"


def test_experts_of_the_module_are_balanced_on_the_stage_with_the_head() -> None:
    """Layers 3 of 4 and 4, the module's, choose experts; both are on the first stage."""
    gpt = BOTH.changed(layers=4, dense_layers=3, router="sigmoid", router_bias=True)
    programs = [lower(gpt, parse_plan(IN_V), stage) for stage in (0, 1)]
    moved = [[str(op.part) for op in p.ops if op.label == "router.bias.move"] for p in programs]
    assert moved == [["l3", "l4"], []]


def test_an_evaluation_goes_without_it() -> None:
    program = lower_forward(APART, parse_plan("mbs=2"))
    assert not any(op.part.layer == 2 for op in program.ops)


def test_of_a_sequences_last_token_there_is_none_after_the_next() -> None:
    at = RankContext(grid=Grid(), rank=0, device=torch.device("cpu"), adamw=AdamW())
    after, kept = torch.empty(6, dtype=torch.int64), torch.empty(6, dtype=torch.uint8)
    op = Op("n", "next_targets", (), (), attributes={"sequence": 3, "ahead": 1})
    tokens = torch.tensor([1, 2, 3, 4, 5, 6])
    next_targets(op, [tokens], [after, kept], at)
    assert after[kept.bool()].tolist() == [2, 3, 5, 6]
    assert kept.tolist() == [1, 1, 0, 1, 1, 0]
    next_targets(replace(op, attributes={"sequence": 3, "ahead": 2}), [tokens], [after, kept], at)
    assert (after[kept.bool()].tolist(), kept.tolist()) == ([3, 6], [1, 0, 0, 1, 0, 0])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"mtp_layers": 9}, ("mtp_layers=9", "8")),
        ({"mtp_layers": 4, "sequence": 4}, ("mtp_layers=4", "0", "3")),
        ({"mtp_layers": 0, "mtp_shared": True}, ("mtp_shared=true", "mtp_layers")),
        ({"mtp_pattern": "E"}, ("mtp_pattern=E", "pattern")),
        ({"mtp_shared": True, "window": 8, "global_every": 2}, ("global_every",)),
        ({"mtp_loss": 0.0}, ("mtp_loss=0.0", "0")),
        ({"positions": "learned"}, ("positions=learned",)),
        ({"dropout": 0.1}, ("mtp_layers=1", "dropout")),
    ],
)
def test_fields_that_do_not_go_together_are_refused(
    fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError, check=names(*named)):
        BOTH.changed(**fields)


@pytest.mark.parametrize("rule", ["lomo", "mezo"])
def test_rules_without_gradients_at_the_end_of_a_step_are_refused(rule: str) -> None:
    dense = find_model("tiny-llama-40k").changed(mtp_layers=1)
    with pytest.raises(PlanCannotRunError, check=names("mtp_layers")):
        lower(dense, parse_plan(f"batch=4,mbs=4,optimizer={rule}"))


def test_a_modules_linear_has_whole_rows_where_ranks_of_y_have_some_columns() -> None:
    program = lower(APART, parse_plan("y=2,batch=2,mbs=2,overlap=none"))
    shapes = {op.label: program.buffers[op.reads[0]].shape for op in program.ops if op.reads}
    labels = "mtp.join", "eh_proj.matmul", "mtp.columns", "eh_proj.grad.input", "mtp.de.columns"
    assert [shapes[label][1] for label in labels] == [32, 64, 32, 32, 32]
    kept = {op.label: program.buffers[op.writes[0]].shape for op in program.ops if op.writes}
    assert (kept["mtp.columns"][1], kept["mtp.de.columns"][1]) == (16, 16)
