"""Recomputation of parts of layers in Megatron-LM's arguments, there and back."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.exporting import Asked, exported
from simgpt.frameworks.files import MEGATRON, TORCHTITAN
from simgpt.frameworks.rendering import rendered
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
    plan = USUAL | {"expert": 8, "recompute": of}
    question = Asked(find_model("deepseek-v2"), plan, None, 64)
    again = there_and_back(question, framework, tmp_path)
    assert_same(question, again)


def test_several_values_of_an_argument_are_words_of_their_own() -> None:
    """As argparse reads them there, with nargs="*" and "+", type=int of the sizes."""
    plan = {"context": 4, "context_heads": 2, "recompute": "layernorm+mlp", "micro_batch": 1}
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
        ({"recompute_granularity": "selective", "recompute_modules": "mlp"}, "none"),
        ({"moe_layer_recompute": True}, "moe"),
        ({"recompute_granularity": "full", "recompute_method": "uniform"}, "full"),
    ],
)
def test_modules_are_parts(settings: dict[str, Any], recompute: str | None) -> None:
    """All layers of the small model have experts, so that no MLP is there to run again."""
    question = asked(**settings)
    assert question.plan["recompute"] == (recompute or "layernorm+moe_act")
    assert not [name for name in changed(question) if "recompute" in name]


def test_unknown_modules_are_said() -> None:
    question = asked(recompute_granularity="selective", recompute_modules="moe_act mhc")
    assert question.plan["recompute"] == "moe_act"
    assert changed(question)["--recompute-modules"] == "mhc does not run again"


def test_torchtitan_has_no_parts() -> None:
    model = find_model("llama-3.1-8b")
    question = Asked(model, {"data": 8, "recompute": "layernorm"}, None, 8)
    assert exported(question, MEGATRON)
    with pytest.raises(
        PlanCannotRunError, match="torchtitan has no setting for recompute=layernorm"
    ):
        exported(question, TORCHTITAN)
