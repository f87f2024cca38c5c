"""What Megatron-LM checks its arguments for, and an export refuses by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, MEGATRON
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_experts import SPLIT, USUAL
from tests.simgpt.frameworks.test_round_trips import session
from workload.errors import PlanCannotRunError
from workload.gpt import GPT, find_model

__all__ = ["session"]  # the fixture

MIXTRAL, LITE = find_model("mixtral-8x7b"), find_model("deepseek-v2-lite")
WINDOW = MIXTRAL.changed(window=4096, sequence=32768)
FURTHER = MIXTRAL.changed(mtp_layers=2)
OSS = find_model("gpt-oss-20b")
SPREAD = USUAL | {"ep": 8}
DELAYED, SCALES = {"recipe": "fp8-delayed"}, "recipe=fp8-delayed"
PARTS = SPREAD | {"cp": 2}


def refused(gpt: GPT, plan: dict[str, Any], framework: str = MEGATRON, stack: str = "") -> str:
    with pytest.raises(PlanCannotRunError) as found:
        exported(Asked(gpt, plan, None, 64), framework, stack or None)
    return str(found.value)


@pytest.mark.parametrize(
    ("gpt", "plan", "named"),
    [
        (LITE, {"overlap": "dp+a2a", "recompute": "full"}, ["overlap=a2a", "recompute=full"]),
        (LITE, {"overlap": "dp+a2a", "recompute": "moe"}, ["overlap=a2a", "recompute=moe"]),
        (LITE, {"overlap": "dp+a2a+shared"}, ["overlap=a2a+shared"]),
        (MIXTRAL, DELAYED | {"recompute": "layernorm"}, [SCALES, "recompute=layernorm"]),
        (MIXTRAL, DELAYED | {"recompute": "moe_act"}, [SCALES, "recompute=moe_act"]),
    ],
)
def test_what_its_configuration_refuses_is_refused(
    gpt: GPT, plan: dict[str, Any], named: list[str]
) -> None:
    assert_names(refused(gpt, SPREAD | plan), "Megatron-LM", *named)
    if "recipe" not in plan:  # of which Megatron-Bridge is told none
        assert_names(refused(gpt, SPREAD | plan, BRIDGE), "Megatron-Bridge", *named)


def test_it_is_the_frameworks_own_check_whatever_the_stack() -> None:
    plan = SPREAD | {"overlap": "dp+a2a", "recompute": "full"}
    assert_names(refused(MIXTRAL, plan, stack="simgpt"), "Megatron-LM", "recompute=full")


@pytest.mark.parametrize(
    ("gpt", "plan", "key", "needs"),
    [
        (WINDOW, PARTS, "window", ["context_kind=ulysses", "all_gather"]),
        (WINDOW, PARTS | {"cp": 4, "context_heads": 2}, "window", ["ulysses", "all_gather"]),
        (OSS, PARTS, "sinks", ["context_kind=ulysses"]),
        (OSS, PARTS | {"context_kind": "all_gather"}, "sinks", ["context_kind=ulysses"]),
    ],
)
def test_windows_and_sinks_go_with_some_kinds_of_context(
    gpt: GPT, plan: dict[str, Any], key: str, needs: list[str]
) -> None:
    why = refused(gpt, plan)
    assert f"{key}=" in why
    assert_names(why, "Megatron-LM", *needs)


@pytest.mark.parametrize(
    ("gpt", "kinds"), [(WINDOW, ("ulysses", "all_gather")), (OSS, ("ulysses",))]
)
def test_with_these_kinds_they_are_exported(gpt: GPT, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        plan = PARTS | {"context_kind": kind}
        assert "window-size" in exported(Asked(gpt, plan, None, 64), MEGATRON).settings
    ring = PARTS | {"cp": 1, "context_kind": "ring"}
    assert exported(Asked(gpt, ring, None, 64), MEGATRON)


@pytest.mark.parametrize(
    ("gpt", "plan", "named"),
    [
        (OSS, SPLIT | {"ep": 4}, ["etp=1", "etp=0"]),
        (replace(find_model("llama-4-scout"), biases=True), SPREAD, ["shared_ffn=8192"]),
        (FURTHER, SPREAD | {"overlap": "a2a"}, ["mtp_layers=0", "mtp_layers=2"]),
    ],
)
def test_what_else_of_experts_it_does_not_train(
    gpt: GPT, plan: dict[str, Any], named: list[str]
) -> None:
    assert_names(refused(gpt, plan), *named)


def test_fp8_without_a_recipe_has_delayed_scales_in_megatron_alone() -> None:
    plan = SPREAD | {"precision": "fp8", "recompute": "layernorm+moe_act"}
    said = refused(MIXTRAL, plan)
    assert_names(said, "recompute=layernorm", "recipe=fp8-tensorwise")
    assert exported(Asked(MIXTRAL, plan, None, 64), BRIDGE)
    assert exported(Asked(MIXTRAL, plan | {"recompute": "selective"}, None, 64), MEGATRON)


def test_a_plan_that_does_not_divide_the_model_is_refused() -> None:
    said = simgpt(
        "export", "llama-3.1-8b", "--plan", "tp=3,dp=8", "--batch", "64", "--to", MEGATRON
    )
    assert (said.status, said.out) == (3, "")
    assert_names(said.err, "tp=3", "heads=32")


def test_a_stack_lists_what_it_does_not_run_together() -> None:
    lines = simgpt("stacks", "megatron-core").out.splitlines()
    for pair in ({"overlap=a2a", "recompute=full"}, {"recipe=fp8-delayed", "recompute=moe_act"}):
        assert any(pair <= {*line.split()} for line in lines)
