"""Settings that are read by the model that the user names, where the files have none."""

from __future__ import annotations

from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, MEGATRON, Described
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import job_from
from simgpt.frameworks.reading import FrameworkError
from tests.messages import assert_names, names
from tests.simgpt.frameworks.test_experts import asked, changed
from workload.gpt import find_model
from workload.lowering import check
from workload.plan import Plan

SCRIPT = {
    "tensor-model-parallel-size": 2,
    "expert-model-parallel-size": 8,
    "expert-tensor-parallel-size": 1,
    "sequence-parallel": True,
    "micro-batch-size": 1,
    "global-batch-size": 256,
    "bf16": True,
    "recompute-granularity": "selective",
}
RECIPE = {
    "model.pipeline_model_parallel_size": 4,
    "model.expert_model_parallel_size": 64,
    "model.recompute_granularity": "selective",
    "train.micro_batch_size": 1,
    "train.global_batch_size": 2048,
    "mixed_precision": "bf16_mixed",
}


def given(model: str | None, framework: str = MEGATRON, **settings: Any) -> ImportedJob:
    """The question of a model that no file describes, 512 devices."""
    own = RECIPE if framework == BRIDGE else SCRIPT
    return job_from([Described(framework, own | settings)], devices=512, model=model, changed={})


@pytest.mark.parametrize(
    ("model", "framework", "expert", "modules", "recompute", "lacking"),
    [
        ("mixtral-8x7b", MEGATRON, 8, "mlp", "none", "mlp"),
        ("mixtral-8x7b", MEGATRON, 8, "moe_act mla_up_proj", "moe_act", "mla_up_proj"),
        ("deepseek-v3", BRIDGE, 64, "mla_up_proj", "mla_up_proj", ""),
        ("deepseek-v3", BRIDGE, 64, "mlp", "mlp", ""),
        ("llama-4-maverick", MEGATRON, 8, "mlp", "mlp", ""),
        ("nemotron-3-nano", MEGATRON, 8, "mlp", "none", "mlp"),
        ("llama-3.1-8b", MEGATRON, None, "mlp", "mlp", ""),
        (None, MEGATRON, 8, "mlp moe_act", "mlp+moe_act", ""),
    ],
)
def test_experts_and_parts_are_those_of_the_given_model(
    model: str | None,
    framework: str,
    expert: int | None,
    modules: str,
    recompute: str,
    lacking: str,
) -> None:
    """A dense model has no experts to split, which is said; before --model is given, none is
    presumed."""
    name = "model.recompute_modules" if framework == BRIDGE else "recompute-modules"
    question = given(model, framework, **{name: modules})
    assert question.plan.get("ep") == expert
    assert question.plan["recompute"] == recompute
    spelled = name if framework == BRIDGE else f"--{name}"
    said = changed(question)
    assert (spelled in said) == bool(lacking)
    assert_names(said.get(spelled, ""), *lacking.split())
    split = "model.expert_model_parallel_size" if framework == BRIDGE else f"--{SIZE}"
    assert_names(said[split], "experts" if expert is None else "dispatcher")


SIZE = "expert-model-parallel-size"


def test_the_plan_for_a_given_model_can_be_predicted() -> None:
    question = given("mixtral-8x7b", **{"recompute-modules": "mlp"})
    assert question.gpt == find_model("mixtral-8x7b")
    own = {key: value for key, value in question.plan.items() if key not in ("dp", "overlap")}
    plan = Plan.of(**own | {"dp": 256, "batch": 256, "overlap": ()})
    check(question.gpt, plan)


def test_a_dispatcher_that_is_named_is_taken_where_experts_are_not_told() -> None:
    question = given("mixtral-8x7b", **{"moe-token-dispatcher-type": "allgather"})
    assert question.plan["dispatcher"] == "all_gather"
    assert "dispatcher" not in given("mixtral-8x7b").plan


def test_fields_that_the_user_sets_come_before_those_of_files() -> None:
    described = [Described(MEGATRON, SCRIPT)]
    question = job_from(
        described,
        devices=64,
        model="llama-3.1-8b",
        changed={"experts": 8, "topk": 2, "expert_ffn": 64},
    )
    assert question.plan["ep"] == 8


def test_a_sequence_that_the_user_sets_comes_before_that_of_the_files() -> None:
    """2,048 of --model-set, though the script has 4,096 and the model 8,192."""
    described = [Described(MEGATRON, SCRIPT | {"seq-length": 4096})]
    set_by_user = {"sequence": 2048}
    question = job_from(described, devices=64, model="llama-3.1-8b", changed=set_by_user)
    assert question.question.model_set == set_by_user
    assert question.gpt is not None
    assert question.gpt.sequence == 2048
    of_files = job_from(described, devices=64, model="llama-3.1-8b", changed={})
    assert of_files.question.model_set == {"sequence": 4096}


@pytest.mark.parametrize("name", [SIZE, "expert-tensor-parallel-size"])
@pytest.mark.parametrize("size", [-4, 0])
def test_a_size_below_one_is_refused(name: str, size: int) -> None:
    settings: dict[str, Any] = {name: size}
    with pytest.raises(FrameworkError, check=names(f"--{name}", f"{size}", "1")):
        asked(**settings)
