"""Experts and latent attention in Megatron-LM's arguments and torchtitan's TOML, there and back."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, MEGATRON, TORCHTITAN, Described
from simgpt.frameworks.imported_job import ImportedJob, spelled
from simgpt.frameworks.importing import imported, job_from
from simgpt.frameworks.layers.patterns import pattern_of
from simgpt.frameworks.reading import FrameworkError
from simulator.stacks import load_stack, stack_names
from tests.examples import one_in
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_round_trips import assert_same, session, there_and_back
from workload.errors import PlanCannotRunError
from workload.gpt import find_model

FILES = Path(__file__).parent / "files"
USUAL = {"dp": 8, "mbs": 1, "zero": 1}
SPLIT = USUAL | {"tp": 2, "sp": True}
PLANS: dict[str, dict[str, Any]] = {
    "whole": USUAL,
    "ep": USUAL | {"ep": 8},
    "etp": SPLIT | {"ep": 4},
    "folded": SPLIT | {"ep": 8, "etp": 1},
    "halves": SPLIT | {"tp": 4, "ep": 4, "etp": 2},
    "copies": SPLIT | {"tp": 4, "ep": 2, "etp": 1},
    "wider": SPLIT | {"ep": 2, "etp": 4},
    "cp": USUAL | {"cp": 2, "context_kind": "all_gather", "ep": 2},
    "a2a+p2p": USUAL | {"cp": 4, "context_heads": 2, "ep": 8},
    "stages": USUAL | {"pp": 2, "ep": 4, "overlap": "dp"},
    "turns": USUAL | {"ep": 8, "overlap": "a2a+dp"},
    "pairs": USUAL | {"pp": 2, "vpp": 2, "ep": 4, "overlap": "a2a+wgrad+dp+pp"},
}


def chunks_of(plan: dict[str, Any]) -> int:
    """How many parts of a model a plan has."""
    return int(plan.get("pp", 1)) * int(plan.get("vpp", 1))


MODELS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2", "deepseek-v2-lite", "llama-4-maverick")
CASES = [
    (model, plan)
    for model, plan in product(MODELS, PLANS)
    if find_model(model).layers % chunks_of(PLANS[plan]) == 0
]
SMALL = {
    "num-layers": 8,
    "hidden-size": 256,
    "num-attention-heads": 4,
    "seq-length": 512,
    "vocab-size": 1000,
    "micro-batch-size": 1,
    "bf16": True,
    "swiglu": True,
    "disable-bias-linear": True,
    "normalization": "RMSNorm",
    "num-experts": 16,
    "moe-grouped-gemm": True,
    "moe-token-dispatcher-type": "alltoall",
}
__all__ = ["session"]  # the fixture


def asked(framework: str = MEGATRON, **settings: Any) -> ImportedJob:
    """The question of a small model with further arguments, `_` for `-`."""
    own = {name.replace("_", "-"): value for name, value in settings.items()}
    return job_from([Described(framework, SMALL | own)], devices=16, changed={})


def changed(question: ImportedJob) -> dict[str, str]:
    return {each.name: each.why for each in question.changes}


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(("model", "plan"), one_in(3, CASES))
def test_models_with_experts_come_back(
    model: str, plan: str, framework: str, tmp_path: Path
) -> None:
    question = Asked(find_model(model), PLANS[plan], None, 64)
    again = there_and_back(question, framework, tmp_path)
    assert_same(question, again)
    assert again.question.model == model
    # Megatron takes a group of DeepSeek-V2 for its best two experts, the paper for its best.
    groups = ["groups"] if model == "deepseek-v2" else []
    assert [each.name[-6:] for each in again.changes] == groups


@pytest.mark.parametrize("shards", [{}, {"shard": 4}], ids=["fsdp", "hsdp"])
@pytest.mark.parametrize("plan", ["whole", "ep", "etp", "folded"])
def test_torchtitans_models_with_experts_come_back(
    plan: str, shards: dict[str, int], tmp_path: Path
) -> None:
    own = PLANS[plan] | {"zero": 3} | shards
    if plan == "ep" and shards:
        own["ep"] = 4  # not more than are in a run of shards
    question = Asked(find_model("qwen3-30b-a3b"), own, None, 64)
    assert_same(question, there_and_back(question, "torchtitan", tmp_path))


def test_what_mixtral_is_told_by(tmp_path: Path) -> None:
    mixtral = find_model("mixtral-8x7b").changed(capacity=1.25)
    found = exported(Asked(mixtral, PLANS["folded"], None, 64), "megatron").settings
    assert {key: value for key, value in found.items() if "moe" in key or "expert" in key} == {
        "num-experts": 8,
        "moe-router-topk": 2,
        "moe-ffn-hidden-size": 14336,
        "moe-grouped-gemm": True,
        "moe-expert-capacity-factor": 1.25,
        "moe-pad-expert-input-to-capacity": True,
        "moe-token-drop-policy": "position",
        "moe-token-dispatcher-type": "alltoall",
        "expert-model-parallel-size": 8,
        "expert-tensor-parallel-size": 1,
    }
    deepseek = exported(Asked(find_model("deepseek-v3"), PLANS["ep"], None, 64), "megatron-bridge")
    assert deepseek.settings["model.moe_layer_freq"] == [0] * 3 + [1] * 58
    assert deepseek.settings["model.q_lora_rank"] == 1536


def test_sizes_of_hierarchical_context_are_those_of_both_exchanges() -> None:
    both: dict[str, Any] = {"context_parallel_size": 8, "cp_comm_type": "a2a+p2p"}
    found = asked(hierarchical_context_parallel_sizes="2 4", **both)
    assert found.plan["context_heads"] == 2
    (refused,) = asked(hierarchical_context_parallel_sizes="2 2", **both).refused
    assert str(refused) == "--hierarchical-context-parallel-sizes 2 2"
    assert_names(refused.why, "8")


def test_turns_are_written_and_read_by_both_names() -> None:
    mixtral = find_model("mixtral-8x7b")
    found = exported(Asked(mixtral, PLANS["pairs"], None, 64), "megatron").settings
    assert found["overlap-moe-expert-parallel-comm"] is found["delay-wgrad-compute"] is True
    bridge = exported(Asked(mixtral, PLANS["turns"], None, 64), "megatron-bridge").settings
    assert bridge["comm_overlap.overlap_moe_expert_parallel_comm"] is True
    assert "comm_overlap.delay_wgrad_compute" not in bridge
    split: dict[str, Any] = {
        "expert_model_parallel_size": 2,
        "overlap_moe_expert_parallel_comm": True,
    }
    assert "a2a" in asked(**split).plan["overlap"].split("+")
    both = asked(**split, delay_wgrad_compute=True).plan["overlap"].split("+")
    assert both[-2:] == ["a2a", "wgrad"]
    with pytest.raises(PlanCannotRunError):
        exported(Asked(mixtral, USUAL | {"ep": 8, "overlap": "wgrad"}, None, 64), "megatron")


def test_a_dispatcher_that_sends_once_is_another_stack(tmp_path: Path) -> None:
    question = Asked(find_model("mixtral-8x7b"), PLANS["ep"], None, 64)
    found = exported(question, "megatron", "megatron-core-deepep").settings
    assert found["moe-token-dispatcher-type"] == "flex"
    assert asked(moe_token_dispatcher_type="flex").question.stack == "megatron-core-deepep"
    assert asked(moe_enable_deepep=True).question.stack == "megatron-core-deepep"
    assert asked().question.stack == "megatron-core"


ONCE_STACKS = [
    name
    for name in stack_names()
    if load_stack(name).usual_exchange.once and 1 in load_stack(name).can["zero"]
]


@pytest.mark.parametrize("stack", ONCE_STACKS)
@pytest.mark.parametrize(
    ("framework", "kind"),
    [(MEGATRON, "moe-token-dispatcher-type"), (BRIDGE, "model.moe_token_dispatcher_type")],
)
def test_every_stack_that_sends_once_is_told_so(framework: str, kind: str, stack: str) -> None:
    mixtral = find_model("mixtral-8x7b")
    plan = {"dp": 16, "ep": 8, "mbs": 1, "zero": 1}
    assert exported(Asked(mixtral, plan, None, 64), framework, stack).settings[kind] == "flex"
    whole = plan | {"ep": 1}  # DeepEP wants several ranks of experts
    assert exported(Asked(mixtral, whole, None, 64), framework, stack).settings[kind] == "alltoall"


def test_a_framework_that_cannot_send_once_refuses_such_a_stack() -> None:
    asked = Asked(find_model("qwen3-30b-a3b"), PLANS["ep"] | {"zero": 3}, None, 64)
    with pytest.raises(PlanCannotRunError, check=names("dispatcher=once_per_node")):
        exported(asked, TORCHTITAN, "nemo+deepep")


@pytest.mark.parametrize(
    ("framework", "model", "plan", "named"),
    [
        ("megatron", "nemotron-3-nano", USUAL, ["nemotron-3-nano"]),
        ("axonn", "mixtral-8x7b", USUAL, ["AxoNN", "mixtral-8x7b"]),
        ("deepspeed", "mixtral-8x7b", PLANS["ep"], ["DeepSpeed", "ep=8"]),
        (
            "torchtitan",
            "mixtral-8x7b",
            PLANS["ep"] | {"zero": 3},
            ["torchtitan"],
        ),
        (
            "megatron",
            "mixtral-8x7b",
            SPLIT | {"sp": False},
            ["sp=true"],
        ),
        ("megatron", "mixtral-8x7b", USUAL | {"z": 2}, ["Megatron-LM", "z=2"]),
    ],
)
def test_what_a_framework_cannot_be_told_of_experts_is_refused(
    framework: str, model: str, plan: dict[str, Any], named: list[str]
) -> None:
    words = ",".join(f"{key}={str(value).lower()}" for key, value in plan.items())
    said = simgpt("export", model, "--plan", words, "--batch", "64", "--to", framework)
    assert (said.status, said.out) == (3, "")
    assert_names(said.sentence, *named)


def test_deepspeeds_file_says_that_experts_stand_elsewhere() -> None:
    plan = "dp=8,mbs=1,zero=1"
    said = simgpt("export", "mixtral-8x7b", "--plan", plan, "--batch", "64", "--to", "deepspeed")
    assert_names(said.err, "experts=8")


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({}, "topk", 2),
        ({}, "router", "softmax-topk"),
        ({}, "expert_ffn", 640),  # as the MLP: 4 * 256 * 2 / 3 in multiples of 64
        ({"moe_router_pre_softmax": True}, "router", "softmax"),
        ({"moe_router_score_function": "sigmoid"}, "router", "sigmoid"),
        ({"moe_router_topk_scaling_factor": 2.5}, "router_scale", 2.5),
        ({"moe_ffn_hidden_size": 100}, "expert_ffn", 100),
        ({"moe_shared_expert_intermediate_size": 96}, "shared_ffn", 96),
        ({"moe_layer_freq": "([0]*3+[1]*5)"}, "dense_layers", 3),
        ({"moe_layer_freq": "[0,1]*4"}, "expert_every", 2),
        ({"moe_layer_freq": [0, 1] * 4}, "expert_every", 2),
        ({"moe_layer_freq": 1}, "dense_layers", 0),
        ({"moe_expert_capacity_factor": 1.25}, "capacity", 1.25),
        ({"moe_expert_capacity_factor": -1.0}, "capacity", 0.0),
        ({"multi_latent_attention": True}, "kv_rank", 32),
        ({"multi_latent_attention": True, "v_head_dim": 64}, "value_width", 64),
        ({"multi_latent_attention": True, "q_lora_rank": 48}, "q_rank", 48),
        ({"moe_router_num_groups": 4, "moe_router_group_topk": 2}, "router_topk_groups", 2),
        (
            {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"},
            "router_bias_rate",
            0.001,
        ),
        ({"moe_aux_loss_coeff": 0.01}, "balance_over", "micro_batch"),
        (
            {"moe_aux_loss_coeff": 0.01, "moe_router_load_balancing_type": "seq_aux_loss"},
            "balance_loss",
            0.01,
        ),
    ],
)
def test_arguments_become_a_models_fields(settings: dict[str, Any], field: str, value: Any) -> None:
    question = asked(**settings)
    assert question.gpt is not None
    assert question.gpt.value(field) == value


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"moe_token_dispatcher_type": "tp", "expert_model_parallel_size": 2}, "dispatcher-type"),
        ({"moe_grouped_gemm": False}, "moe-grouped-gemm"),
        ({"moe_router_num_groups": 4, "moe_router_group_topk": 1}, "moe-router-num-groups"),
        ({"moe_router_load_balancing_type": "sinkhorn"}, "moe-router-load-balancing-type"),
        ({"moe_expert_capacity_factor": 1.0}, "moe-expert-capacity-factor"),
        ({"moe_shared_expert_overlap": True}, "moe-shared-expert-overlap"),
        ({"overlap_moe_expert_parallel_comm": True}, "overlap-moe-expert-parallel-comm"),
        (
            {
                "overlap_moe_expert_parallel_comm": True,
                "expert_model_parallel_size": 2,
                "pipeline_model_parallel_size": 2,
            },
            "overlap-moe-expert-parallel-comm",
        ),
        ({"delay_wgrad_compute": True, "expert_model_parallel_size": 2}, "delay-wgrad-compute"),
        ({"moe_ruter_topk": 4}, "moe-ruter-topk"),
        (
            {"disable_bias_linear": False, "moe_shared_expert_intermediate_size": 256},
            "shared-expert-intermediate-size",
        ),
        ({"disable_bias_linear": False, "moe_latent_size": 64}, "moe-latent-size"),
        ({"multi_latent_attention": True}, "multi-latent-attention"),
    ],
)
def test_what_changes_a_step_of_experts_is_said(settings: dict[str, Any], name: str) -> None:
    question = asked(**settings)
    assert question.refused == ()
    assert [each for each in changed(question) if each.endswith(name)]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"expert_tensor_parallel_num_weight_shards": 2}, "num-weight-shards"),
        ({"moe_layer_freq": 2}, "moe-layer-freq"),  # layers 0, 2, …: none stands before the first
        ({"moe_router_score_function": "sqrtsoftplus"}, "moe-router-score-function"),
        ({"deepspeed": True}, "num-experts"),
    ],
)
def test_what_is_not_modelled_of_experts_is_refused(settings: dict[str, Any], name: str) -> None:
    assert [each for each in asked(**settings).refused if name in each.name]


def test_megatrons_own_expert_test_is_a_question() -> None:
    question = imported([FILES / "experts.yaml"], devices=8)
    assert question.refused == ()
    assert question.gpt is not None
    assert (question.gpt.moe.experts, question.gpt.moe.topk, question.plan["ep"]) == (8, 2, 2)
    assert question.gpt.biases
    assert set(changed(question)) == {
        "--moe-grouped-gemm",
        "NCCL_ALGO",
    }


def test_without_experts_their_arguments_say_nothing() -> None:
    question = asked(num_experts=None, moe_router_topk=4, moe_ruter_topk=4)
    assert (question.refused, question.changes) == ((), ())
    assert "--moe-ruter-topk" in {each.name for each in question.without_effect}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "[0]*10**9",
        "[0]*9999999",
        "[2]*8",
        "[[0]]",
        "0",
        "",
        "[0]*8*'a'",
        "([0]",
    ],
)
def test_a_pattern_is_read_and_never_evaluated(text: str) -> None:
    assert pattern_of(text, 8) in (None, [0])
    if text:
        with pytest.raises(FrameworkError, check=names("--moe-layer-freq", text, "8")):
            asked(moe_layer_freq=text)


def test_torchtitans_experts_are_split_over_data_or_over_x_too() -> None:
    settings = {"model.name": "qwen3", "model.flavor": "30B-A3B"}
    settings |= {"parallelism.tensor_parallel_degree": "2"}
    settings |= {"parallelism.expert_parallel_degree": "8"}

    def found(**more: str) -> ImportedJob:
        own = {f"parallelism.expert_{key}": value for key, value in more.items()}
        return job_from([Described(TORCHTITAN, settings | own)], devices=16, changed={})

    assert (found().plan["ep"], found().plan["etp"]) == (8, 1)
    assert "etp" not in found(tensor_parallel_degree="2").plan
    assert found(tensor_parallel_degree="3").refused
    plan = PLANS["halves"] | {"zero": 3}
    halves = Asked(find_model("qwen3-30b-a3b"), plan, None, 64)
    with pytest.raises(PlanCannotRunError, check=names("torchtitan", "etp")):
        exported(halves, TORCHTITAN)
    assert changed(found(parallel_comm_backend="deepep"))


def test_a_plans_dispatcher_is_told_to_megatron_or_refused_by_name() -> None:
    plan, gpt = "dp=64,ep=8,mbs=1", find_model("mixtral-8x7b")

    def told(dispatcher: str, stack: str | None) -> str:
        own = Asked(gpt, f"{plan},dispatcher={dispatcher}", 64, 256)
        return str(exported(own, MEGATRON, stack).settings["moe-token-dispatcher-type"])

    assert told("once_per_node", None) == told("usual", "megatron-core-deepep") == "flex"
    assert told("usual", None) == told("all_to_all", None) == "alltoall"
    assert told("all_to_all", "megatron-core-deepep") == "alltoall"
    assert told("all_gather", None) == "allgather"
    once = exported(Asked(gpt, f"{plan},dispatcher=once_per_rank", 64, 256), MEGATRON)
    assert once.settings["moe-token-dispatcher-type"] == "flex"
    assert once.settings["moe-flex-dispatcher-backend"] == "mori"
    assert any("ROCm" in each for each in once.notes)
    with pytest.raises(PlanCannotRunError, check=names("nemo", "dispatcher=once_per_rank")):
        told("once_per_rank", "nemo")
    flex = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "mori"}
    assert asked(**flex, expert_model_parallel_size=2).plan["dispatcher"] == "once_per_rank"
    read = asked(moe_token_dispatcher_type=None, expert_model_parallel_size=2)
    assert read.plan["dispatcher"] == "all_gather"
    with pytest.raises(PlanCannotRunError, check=names("dispatcher=hierarchical")):
        told("hierarchical", "simgpt")
    with pytest.raises(PlanCannotRunError, check=names("dispatcher=hierarchical")):
        told("hierarchical", None)


def test_a_model_without_a_loss_of_uneven_use_is_the_preset_whatever_that_would_be_over() -> None:
    mixtral = find_model("mixtral-8x7b")
    assert spelled(mixtral.changed(balance_over="micro_batch")) == ("mixtral-8x7b", {})
    assert spelled(mixtral.changed(balance_loss=0.001))[0].endswith("balance_loss=0.001")
