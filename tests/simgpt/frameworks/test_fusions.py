"""Fused kernels and CUDA graphs of stacks in Megatron-LM's arguments, there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, MEGATRON, Described
from simgpt.frameworks.importing import imported, job_from, table_of
from simgpt.frameworks.rendering import rendered
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_experts import asked, changed, session
from tests.simgpt.frameworks.test_round_trips import SUFFIXES
from workload.errors import PlanCannotRunError
from workload.gpt import find_model

PLAN = {"dp": 8, "mbs": 1, "zero": 1, "ep": 8}
ALL = {
    "moe_permute_fusion": True,
    "moe_router_fusion": True,
    "cross_entropy_loss_fusion": True,
}
SCOPED = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "moe_router moe_preprocess"}
STACKS = [name for name in table_of(MEGATRON)["with_fusions"] if "full" not in name]
TOLD = {name for name in STACKS if "nemo" in name or "fused" in name}  # by what is turned on
__all__ = ["session"]  # the fixture


@pytest.mark.parametrize("framework", [MEGATRON, BRIDGE])
@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_with_fused_kernels_and_graphs_comes_back(
    stack: str, framework: str, tmp_path: Path
) -> None:
    question = Asked(find_model("mixtral-8x7b"), PLAN, None, 64)
    found = exported(question, framework, stack)
    path = tmp_path / f"exported{SUFFIXES[framework]}"
    path.write_text(rendered(found) + "\n", encoding="utf-8")
    again = imported([path], framework, devices=found.devices)
    assert again.question.stack == stack
    assert again.changes == ()
    assert bool(again.stack_words) == (stack in TOLD or framework == BRIDGE)


def test_what_nemo_with_graphs_is_told_by() -> None:
    question = Asked(find_model("mixtral-8x7b"), PLAN, None, 64)
    found = exported(question, MEGATRON, "nemo+graphs=attn").settings
    own = {key: value for key, value in found.items() if "fusion" in key or "graph" in key}
    assert own == {
        "moe-permute-fusion": True,
        "moe-router-fusion": True,
        "cross-entropy-loss-fusion": True,
        "cuda-graph-impl": "transformer_engine",
        "cuda-graph-scope": ["attn", "moe_router", "moe_preprocess"],
    }
    dense = Asked(find_model("llama-3.1-8b"), {"dp": 8, "mbs": 1}, None, 64)
    found = exported(dense, MEGATRON, "nemo+graphs=router").settings
    assert [key for key in found if "fusion" in key] == ["cross-entropy-loss-fusion"]
    assert "cuda-graph-impl" not in found  # without a scope whole layers would be captured


def test_what_a_stack_has_and_no_setting_carries_is_said() -> None:
    question = Asked(find_model("mixtral-8x7b"), PLAN, None, 64)
    first, second = exported(question, MEGATRON, "nemo+deepep+fused-experts+graphs=full").notes
    assert_names(first, "CUDA graph")
    assert_names(second, "--moe-flex-dispatcher-backend", "hybridep")


def test_fusions_of_experts_have_no_effect_where_the_given_model_has_one() -> None:
    described = Described(MEGATRON, {"micro-batch-size": 1, "moe-permute-fusion": True})
    one = {"experts": 1, "topk": 1}
    question = job_from([described], devices=8, model="mixtral-8x7b", changed=one)
    assert changed(question) == {}
    assert [each.name for each in question.without_effect] == ["--moe-permute-fusion"]


@pytest.mark.parametrize("recompute", ["full", "full:2", "moe"])
def test_parts_in_graphs_do_not_run_again(recompute: str) -> None:
    question = Asked(find_model("mixtral-8x7b"), PLAN | {"recompute": recompute}, None, 64)
    with pytest.raises(PlanCannotRunError, check=names("CUDA graphs", f"recompute={recompute}")):
        exported(question, MEGATRON, "nemo+graphs=router")
    exported(question, MEGATRON, "nemo")


@pytest.mark.parametrize(
    ("settings", "stack"),
    [
        (ALL, "nemo"),
        (ALL | {"moe_token_dispatcher_type": "flex"}, "nemo+deepep"),
        (ALL | SCOPED | {"moe_enable_deepep": True}, "nemo+deepep+graphs=router"),
        (
            ALL | SCOPED | {"cuda_graph_scope": "[attn,moe_router,moe_preprocess]"},
            "nemo+graphs=attn",
        ),
        (ALL | {"cuda_graph_impl": "full_iteration"}, "nemo+graphs=full"),
        (
            ALL | {"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"},
            "nemo+graphs=full",
        ),
        (
            ALL | {"external_cuda_graph": True, "cuda_graph_modules": "moe_router moe_preprocess"},
            "nemo+graphs=router",
        ),
        (ALL | {"cuda_graph_impl": "none"}, "nemo"),
        (ALL | {"moe_permute_fusion": False}, "nemo+unfused-permutation"),
    ],
)
def test_what_a_script_turns_on_is_the_stack_that_has_it(
    settings: dict[str, Any], stack: str
) -> None:
    question = asked(**settings)
    assert (question.question.stack, changed(question)) == (stack, {})
    assert "--cross-entropy-loss-fusion" in question.stack_words


@pytest.mark.parametrize(
    ("settings", "stack", "said"),
    [
        (
            {"moe_permute_fusion": True, "cross_entropy_loss_fusion": True},
            "megatron-core",
            {
                "--moe-permute-fusion": [],
                "--cross-entropy-loss-fusion": ["megatron-core-fused-loss"],
            },
        ),
        (
            ALL | {"moe_enable_deepep": True, "cuda_graph_impl": "local"},
            "megatron-core-deepep",
            {
                "--moe-permute-fusion": ["nemo+deepep"],
                "--moe-router-fusion": ["nemo+deepep"],
                "--cross-entropy-loss-fusion": ["nemo+deepep"],
                "--cuda-graph-impl": [],
            },
        ),
        (SCOPED, "megatron-core", {"--cuda-graph-impl": []}),
        (
            ALL | SCOPED | {"cuda_graph_scope": "attn moe_router"},
            "megatron-core",
            {"--cuda-graph-impl": ["nemo+graphs=attn", "attn", "moe_preprocess", "moe_router"]},
        ),
        (
            {"num_experts": None, "cross_entropy_loss_fusion": True, "enable_cuda_graph": True},
            "megatron-core",
            {
                "--cross-entropy-loss-fusion": ["megatron-core-fused-loss"],
                "--enable-cuda-graph": [],
            },
        ),
    ],
)
def test_what_no_stack_has_is_said_with_the_nearest(
    settings: dict[str, Any], stack: str, said: dict[str, list[str]]
) -> None:
    question = asked(**settings)
    found = changed(question)
    assert (question.question.stack, question.stack_words) == (stack, "")
    for name, named in said.items():
        assert_names(found[name], *named)


def test_import_says_why_it_is_the_stack(tmp_path: Path) -> None:
    question = Asked(find_model("mixtral-8x7b"), PLAN, None, 64)
    path = tmp_path / "job.sh"
    path.write_text(rendered(exported(question, MEGATRON, "nemo")) + "\n", encoding="utf-8")
    shown = simgpt("import", str(path), "--from", "megatron", "-n", "8").out
    assert_names(shown, "nemo", "--moe-permute-fusion", "--moe-router-fusion")


@pytest.mark.parametrize("experts", [8, None])
def test_a_fused_loss_alone_is_a_stack_of_its_own(experts: int | None) -> None:
    """Of models without experts as well, as nothing else differs, its pace included."""
    question = asked(num_experts=experts, cross_entropy_loss_fusion=True)
    assert (question.question.stack, changed(question)) == ("megatron-core-fused-loss", {})
    assert_names(question.stack_words, "--cross-entropy-loss-fusion")
