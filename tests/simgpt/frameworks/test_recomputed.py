"""Recomputation of parts of layers in Megatron-LM's arguments, there and back."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, MEGATRON, TORCHTITAN, Described
from simgpt.frameworks.importing import job_from
from simgpt.frameworks.reading import FrameworkError
from simgpt.frameworks.rendering import rendered
from tests.messages import assert_names, names
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_experts import USUAL, asked, changed
from tests.simgpt.frameworks.test_round_trips import assert_same, session, there_and_back
from workload.errors import PlanCannotRunError
from workload.gpt import find_model

__all__ = ["session"]  # the fixture


@pytest.mark.parametrize(
    "of",
    [
        "selective",
        "core_attn+layernorm",
        "layernorm+mla_up_proj+mlp+moe_act",
        "moe+mla_up_proj",
        "shared_experts",
    ],
)
@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge"])
def test_parts_come_back(of: str, framework: str, tmp_path: Path) -> None:
    plan = USUAL | {"ep": 8, "recompute": of}
    question = Asked(find_model("deepseek-v2"), plan, None, 64)
    again = there_and_back(question, framework, tmp_path)
    assert_same(question, again)


def test_several_values_of_an_argument_are_words_of_their_own() -> None:
    """As argparse reads them there, with nargs="*" and "+", type=int of the sizes."""
    plan = {"cp": 4, "context_heads": 2, "recompute": "layernorm+mlp", "mbs": 1}
    question = Asked(find_model("llama-3.1-8b"), USUAL | plan, None, 64)
    parser = argparse.ArgumentParser()
    parser.add_argument("--recompute-modules", nargs="*")
    parser.add_argument("--hierarchical-context-parallel-sizes", nargs="+", type=int)
    words = shlex.split(rendered(exported(question, MEGATRON)).replace("\\\n", " "))
    found, _ = parser.parse_known_args(words)
    assert found.recompute_modules == ["layernorm", "mlp"]
    assert found.hierarchical_context_parallel_sizes == [2, 2]


@pytest.mark.parametrize(
    ("settings", "recompute"),
    [
        ({}, "none"),
        ({"recompute_granularity": "selective"}, "selective"),
        ({"recompute_granularity": "selective", "recompute_modules": "moe_act layernorm"}, None),
        ({"recompute_granularity": "selective", "recompute_modules": "[moe_act,layernorm]"}, None),
        ({"recompute_modules": "moe_act"}, "none"),
        ({"moe_layer_recompute": True}, "moe"),
        ({"recompute_granularity": "full", "recompute_method": "uniform"}, "full"),
    ],
)
def test_modules_are_parts(settings: dict[str, Any], recompute: str | None) -> None:
    question = asked(**settings)
    assert question.plan["recompute"] == (recompute or "layernorm+moe_act")
    assert not [name for name in changed(question) if "recompute" in name]


def test_unknown_modules_are_said() -> None:
    question = asked(recompute_granularity="selective", recompute_modules="moe_act mhc")
    assert question.plan["recompute"] == "moe_act"
    assert_names(changed(question)["--recompute-modules"], "mhc")
    assert "moe_act" not in changed(question)["--recompute-modules"]


@pytest.mark.parametrize(
    ("modules", "settings", "recompute", "lacking"),
    [
        ("mlp", {}, "none", "mlp"),
        ("mlp layernorm", {}, "layernorm", "mlp"),
        ("mlp", {"moe_layer_freq": 2}, "mlp", ""),
        ("mlp", {"moe_layer_freq": "([0]*2+[1]*6)"}, "mlp", ""),
        ("mla_up_proj shared_experts moe", {}, "moe", "mla_up_proj, shared_experts"),
        ("shared_experts", {"moe_shared_expert_intermediate_size": 64}, "shared_experts", ""),
        ("moe_act mlp", {"num_experts": None}, "mlp", "moe_act"),
    ],
)
def test_modules_that_no_layer_has_are_said(
    modules: str, settings: dict[str, Any], recompute: str, lacking: str
) -> None:
    """All layers of the small model have experts, so that no MLP is there to run again."""
    own = {"recompute_granularity": "selective", "recompute_modules": modules}
    question = asked(**own, **settings)
    assert question.plan["recompute"] == recompute
    why = changed(question).get("--recompute-modules", "")
    assert bool(why) == bool(lacking)
    assert_names(why, *lacking.split())
    assert not [each for each in recompute.split("+") if each in why.split()]


SELECTED = {"recompute-granularity": "selective", "recompute-modules": "layernorm moe_act"}
PARTIAL = SELECTED | {"micro-batch-size": 1, "bf16": True, "num-experts": 8}
UNEQUAL, NONE = ["experts"], ["experts", "--num-experts"]
IRREGULAR = "([0]*1+[1]*1+[0]*2+[1]*57)"


@pytest.mark.parametrize("model", ["mixtral-8x7b", None])
@pytest.mark.parametrize(
    ("freq", "refused"),
    [
        (None, []),
        ("([0]*3+[1]*58)", []),
        ("2", UNEQUAL),
        (IRREGULAR, UNEQUAL),
        ("([0]*61)", NONE),
    ],
)
@pytest.mark.parametrize("layers", [61, None])
def test_modules_are_read_where_nothing_says_which_layers_have_experts(
    layers: int | None, freq: str | None, refused: list[str], model: str | None
) -> None:
    settings = PARTIAL | {"num-layers": layers, "moe-layer-freq": freq}
    described = [Described(MEGATRON, settings)]
    question = job_from(described, devices=64, model=model, changed={})
    assert question.plan["recompute"] == "layernorm+moe_act"
    known = bool(refused) and not (freq == "2" and layers is None)
    assert len(question.refused) == known
    for each in question.refused:
        assert_names(each.why, *refused)


def test_an_irregular_list_of_a_recipe_is_refused() -> None:
    marks = [0, 1, 0, 0] + [1] * 57
    settings: dict[str, Any] = {
        f"model.{key.replace('-', '_')}": value for key, value in PARTIAL.items()
    }
    settings |= {"model.moe_layer_freq": marks, "model.num_layers": 61}
    settings["model.num_moe_experts"] = settings.pop("model.num_experts")
    (refused,) = job_from([Described(BRIDGE, settings)], devices=64, changed={}).refused
    assert refused.name == "model.moe_layer_freq"


def test_a_list_that_says_nothing_of_layers_is_refused_without_their_number_too() -> None:
    described = [Described(MEGATRON, PARTIAL | {"moe-layer-freq": "often"})]
    with pytest.raises(FrameworkError, check=names("moe-layer-freq")):
        job_from(described, devices=64, changed={})


def test_torchtitan_has_no_parts() -> None:
    model = find_model("llama-3.1-8b")
    question = Asked(model, {"dp": 8, "recompute": "layernorm"}, None, 8)
    assert exported(question, MEGATRON)
    with pytest.raises(PlanCannotRunError, check=names("torchtitan", "recompute=layernorm")):
        exported(question, TORCHTITAN)
