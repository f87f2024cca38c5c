"""Of two features at once, what a framework cannot be told is refused or noted by its name.

The exporter compares what it wrote with what is asked by its own rules; here the whole plans are
compared, field by field, with what is neither refused nor in a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.exported import Exported
from simgpt.frameworks.importing import imported
from simgpt.frameworks.rendering import rendered
from simulator.stacks import load_stack
from simulator.stacks.job import Job, job_of
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_round_trips import SUFFIXES
from topologies.errors import SimgptError
from topologies.session import Session
from workload.descriptions.read import described_model
from workload.gpt import find_model

USUAL: dict[str, Any] = {"dp": 16, "mbs": 1, "zero": 1, "sp": True}
HOW: dict[str, dict[str, Any]] = {
    "fp8": {"precision": "fp8"},
    "mxfp8": {"precision": "mxfp8"},
    "nvfp4": {"precision": "nvfp4"},
    "update": {"offload": "update"},
    "parameters": {"zero": 3, "offload": "parameters"},
    "half": {"gradients": "bf16"},
}
WHERE: dict[str, dict[str, Any]] = {
    "alone": {},
    "ring": {"cp": 2, "context_kind": "ring"},
    "gathered": {"cp": 2, "context_kind": "all_gather"},
    "traded": {"cp": 4, "context_heads": 2},
    "experts": {"ep": 4},
    "whole experts": {"tp": 2, "ep": 4, "etp": 1},
    "experts beside context": {"cp": 4, "ep": 2},
    "copies": {"zero": 3, "shard": 4},
    "copies beside context": {"zero": 3, "cp": 2, "shard": 1},
}
ZERO = {"torchtitan": 3, "axonn": 0}  # the only ones that run there, or none
# Fields that say nothing where others are off, and what a plan's even layers spell out.
INERT = {"batch", "stage_layers", "schedule", "order", "overlap"}


@pytest.fixture(autouse=True, scope="module")
def session() -> Iterator[None]:
    with Session():
        yield


def asked_of(framework: str, how: str, where: str) -> Asked:
    words = {**USUAL, "zero": ZERO.get(framework, 1), **HOW[how], **WHERE[where]}
    if words.get("tp", 1) == 1 or framework == "axonn":
        del words["sp"]
    gpt = find_model("qwen3-30b-a3b" if "ep" in words else "llama-3.1-8b")
    return Asked(gpt, words, None, 64)


def read_again(found: Exported, asked: Asked, folder: Path) -> Job:
    """The job that the exported file asks for."""
    path = folder / f"exported{SUFFIXES[found.framework]}"
    path.write_text(rendered(found) + "\n", encoding="utf-8")
    question = imported([path], devices=found.devices, model=asked.gpt.name)
    assert question.refused == ()
    assert described_model(asked.gpt.name).gpt == asked.gpt
    words = dict(question.plan)
    return job_of(
        asked.gpt,
        words,
        load_stack(question.question.stack),
        devices=found.devices,
        batch=question.question.batch,
    )


def job_asked(asked: Asked, stack: str) -> Job:
    return job_of(asked.gpt, asked.plan, load_stack(stack), batch=asked.batch)


def fields_of(job: Job) -> dict[str, Any]:
    """What of a plan says something."""
    fields = {key: value for key, value in job.plan.flat().items() if key not in INERT}
    if fields["recipe"] == "fp8":
        fields |= {"precision": "fp8", "recipe": "none"}
    if fields["etp"] == fields["tp"]:
        fields["etp"] = 0
    if fields["cp"] == 1:
        del fields["context_kind"]
    if fields["dispatcher"] == "all_to_all":
        fields["dispatcher"] = "usual"
    return fields


@pytest.mark.parametrize(
    ("framework", "stack"),
    [
        ("megatron", "megatron-core"),
        ("megatron-bridge", "nemo"),
        ("torchtitan", "torchtitan"),
        ("deepspeed", "deepspeed"),
        ("axonn", "axonn"),
    ],
)
@pytest.mark.parametrize("how", HOW)
def test_what_a_framework_is_not_told_of_two_features_is_refused_or_noted(
    framework: str, stack: str, how: str, tmp_path: Path
) -> None:
    for where, further in WHERE.items():
        asked = asked_of(framework, how, where)
        try:
            found = exported(asked, framework)
        except SimgptError as error:
            given = (*HOW[how], *further, "recipe")
            named = [key for key in given if f"{key}=" in str(error)]
            assert named or "experts" in str(error), (where, str(error))
            continue
        one, two = fields_of(job_asked(asked, stack)), fields_of(read_again(found, asked, tmp_path))
        notes = " ".join(found.notes)
        lost = [key for key in one if one[key] != two.get(key) and f"{key}=" not in notes]
        assert lost == [], (where, {key: (one[key], two.get(key)) for key in lost})


def test_gradients_of_axonn_are_told_in_the_script_and_noted() -> None:
    plan = {"tp": 2, "dp": 8, "mbs": 1, "gradients": "bf16"}
    found = exported(Asked(find_model("gpt-5b"), plan, None, 64), "axonn")
    assert [each for each in found.notes if each.startswith("gradients=bf16 ")]
    usual = exported(Asked(find_model("gpt-5b"), plan | {"gradients": "fp32"}, None, 64), "axonn")
    assert not [each for each in usual.notes if each.startswith("gradients=")]


@pytest.mark.parametrize(
    ("plan", "runs"),
    [
        # distributed/parallel_dims.py of torchtitan 0.2.1: experts are on all ranks of context, and
        # of tensor parallelism where that does not split them: ep % cp, or ep % (cp * tp), is 0.
        ({"cp": 4, "ep": 2}, False),
        ({"cp": 4, "ep": 4}, True),
        ({"cp": 4, "ep": 8}, True),
        ({"tp": 2, "cp": 2, "ep": 2, "etp": 1}, False),
        ({"tp": 2, "cp": 2, "ep": 4, "etp": 1}, True),
        ({"tp": 2, "cp": 2, "ep": 2}, True),
        ({"tp": 2, "ep": 1, "etp": 1}, False),
    ],
)
def test_torchtitans_experts_are_on_all_ranks_of_context(plan: dict[str, Any], runs: bool) -> None:
    words = {**USUAL, "zero": 3} | plan
    if words.get("tp", 1) == 1:
        del words["sp"]
    asked = Asked(find_model("qwen3-30b-a3b"), words, None, 64)
    if not runs:
        with pytest.raises(SimgptError, match=f"ep={plan['ep']}"):
            exported(asked, "torchtitan")
        return
    settings = exported(asked, "torchtitan").settings
    assert settings["parallelism.expert_parallel_degree"] == plan["ep"]
    within = plan.get("etp", plan.get("tp", 1))
    assert settings["parallelism.expert_tensor_parallel_degree"] == within


@pytest.mark.parametrize("framework", ["deepspeed", "axonn"])
def test_fp8_that_a_file_does_not_say_is_refused_by_name(framework: str) -> None:
    plan = {"dp": 16, "mbs": 1, "zero": 0, "precision": "fp8"}
    with pytest.raises(SimgptError, match="precision=fp8"):
        exported(Asked(find_model("llama-3.1-8b"), plan, None, 64), framework)


P, Z, COPIES = (
    "parallelism.data_parallel_",
    "zero_optimization.",
    "num-distributed-optimizer-instances",
)


@pytest.mark.parametrize(
    ("framework", "plan", "settings"),
    [
        # 16 ranks in 2 copies of 8; and 16 copies of one rank, with 2 of context each.
        ("megatron", {"shard": 8}, {COPIES: 2}),
        ("megatron", {"shard": 1, "cp": 2}, {COPIES: 16}),
        ("torchtitan", {"shard": 8}, {P + "replicate_degree": 2, P + "shard_degree": 8}),
        (
            "torchtitan",
            {"shard": 1, "cp": 2},
            {P + "replicate_degree": 16, P + "shard_degree": 1},
        ),
        ("deepspeed", {"zero": 3, "shard": 8}, {Z + "mics_shard_size": 8}),
        ("deepspeed", {"offload": "update"}, {Z + "offload_optimizer.device": "cpu"}),
        (
            "deepspeed",
            {"zero": 3, "offload": "parameters"},
            {Z + "offload_optimizer.device": "cpu", Z + "offload_param.device": "cpu"},
        ),
        ("torchtitan", {"offload": "parameters"}, {"training.enable_cpu_offload": True}),
        ("megatron", {"offload": "update"}, {"optimizer-cpu-offload": True}),
        ("megatron", {"offload": "activations"}, {"cpu-offloading-num-layers": 31}),
        ("megatron", {"precision": "mxfp8"}, {"fp8-recipe": "mxfp8", "fp8-format": "e4m3"}),
        ("megatron", {"precision": "nvfp4"}, {"fp4-format": "e2m1"}),
        ("torchtitan", {"precision": "fp8"}, {"model.converters": ["float8"]}),
    ],
)
def test_what_a_framework_has_a_setting_for_is_told(
    framework: str, plan: dict[str, Any], settings: dict[str, Any]
) -> None:
    words = {**USUAL, "zero": ZERO.get(framework, 1), "recompute": "none", **plan}
    del words["sp"]
    found = exported(Asked(find_model("llama-3.1-8b"), words, None, 64), framework).settings
    assert {name: found.get(name) for name in settings} == settings
