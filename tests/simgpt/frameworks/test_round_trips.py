"""What is exported is imported as the question that was asked, for every framework."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpt.frameworks.exporting import told
from simgpt.frameworks.imported_job import ImportedJob, shape_of
from simgpt.frameworks.importing import imported
from simgpt.frameworks.rendering import rendered
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from tests.simgpt.frameworks.asked import Asked, exported
from topologies.session import Session
from workload.descriptions.from_table import model_from_table
from workload.gpt import GPT, find_model

SUFFIXES = {
    "megatron": ".sh",
    "megatron-bridge": ".yaml",
    "torchtitan": ".toml",
    "deepspeed": ".json",
    "axonn": ".json",
}


@pytest.fixture(autouse=True, scope="module")
def session() -> Iterator[None]:
    with Session():
        yield


def there_and_back(asked: Asked, framework: str, folder: Path, **how: Any) -> ImportedJob:
    """The question that the exported text asks."""
    found = exported(asked, framework)
    path = folder / f"exported{SUFFIXES[framework]}"
    path.write_text(rendered(found) + "\n", encoding="utf-8")
    return imported([path], devices=found.devices, **how)


def assert_same(asked: Asked, question: ImportedJob, *without: str) -> None:
    """Both are the same step: the same model, as a device has it, and the same plan."""
    stack = load_stack(question.question.stack)
    one = job_of(asked.gpt, asked.plan, stack, devices=asked.devices, batch=asked.batch)
    assert question.gpt is not None
    two = job_of(
        question.gpt,
        dict(question.plan),
        stack,
        devices=one.plan.grid.ranks,
        batch=question.question.batch,
    )
    assert shape_of(one.gpt) == shape_of(two.gpt)
    keys = told(one.plan, one.gpt), told(two.plan, two.gpt)
    assert {**keys[0], **dict.fromkeys(without)} == {**keys[1], **dict.fromkeys(without)}


MODELS = st.builds(
    lambda **fields: model_from_table(
        {"layers": 24, "hidden": 512, "heads": 8, "ffn": 1024, "sequence": 256, **fields},
        "the model",
        name="drawn",
    ),
    vocab=st.sampled_from([1000, 32000, 50257]),
    tied=st.booleans(),
    kv_heads=st.sampled_from([0, 4]),
    head_width=st.sampled_from([0, 128]),
    norm=st.sampled_from(["layernorm", "rmsnorm"]),
    activation=st.sampled_from(["gelu", "swiglu"]),
    positions=st.sampled_from(["learned", "rope"]),
    rope_base=st.sampled_from([10_000, 500_000]),
    biases=st.booleans(),
    dropout=st.sampled_from([0.0, 0.1]),
)
COMMON: dict[str, st.SearchStrategy[Any]] = {
    "tp": st.sampled_from([1, 2, 4]),
    "cp": st.sampled_from([1, 2]),
    "dp": st.sampled_from([1, 2, 8]),
    "pp": st.sampled_from([1, 2, 4]),
    "mbs": st.sampled_from([1, 2]),
    "gradients": st.sampled_from(["fp32", "bf16"]),
    "recompute": st.sampled_from(["none", "selective", "full", "full:1"]),
}


def batch_of(words: dict[str, Any]) -> int:
    """A batch of four micro-batches for each rank."""
    return int(words["dp"] * words["mbs"] * 4)


@st.composite
def megatron_plans(draw: st.DrawFn) -> dict[str, Any]:
    """Plans that Megatron-LM can be told."""
    words = {key: draw(values) for key, values in COMMON.items()}
    words["zero"] = zero = draw(st.sampled_from([0, 1, 2, 3]))
    overlap = ["dp"] * (zero < 3) + ["ors"] * (zero >= 2) + ["oag"] * (zero == 3)
    overlap = overlap if draw(st.booleans()) else []
    overlap += ["oar"] * draw(st.booleans())
    split = draw(st.sampled_from(["even", "interleaved", "uneven", "ends"]))
    if words["pp"] > 1 and split == "interleaved":
        words["vpp"] = draw(st.sampled_from([2, 3]))
        overlap += ["pp"] * draw(st.booleans())
    elif words["pp"] == 2 and split == "uneven":
        words["stage_layers"] = draw(st.sampled_from(["11+13", "0+24", "20+4"]))
    elif words["pp"] == 2 and split == "ends":
        words["ends_as_layers"] = True
    words["overlap"] = "+".join(overlap) or "none"
    words["sp"] = draw(st.booleans())
    words["attention"] = draw(st.sampled_from(["flash", "unfused"][: 3 - words["cp"]]))
    words["precision"] = draw(st.sampled_from(["bf16", "fp8", "fp32"]))
    if words["precision"] == "fp32":
        del words["gradients"]
    elif zero:
        words["moments"] = draw(st.sampled_from(["fp32", "bf16", "fp8"]))
    words["fp8_params"] = words["precision"] == "fp8" and zero > 0 and draw(st.booleans())
    if zero == 1 and words["precision"] == "bf16":
        aware = words["moments"] != "fp32"
        masters = ["remainders", "fp16"] if aware else ["fp32", "remainders", "fp16"]
        words["master"] = draw(st.sampled_from(masters))
        if words["master"] == "fp32":
            words["offload"] = draw(st.sampled_from(["none", "update"]))
        if words.get("offload") == "update":
            words["offload_share"] = draw(st.sampled_from([1.0, 0.25]))
    elif zero == 1:
        words["moments"] = "fp32"
    if "offload" not in words and words["pp"] == 1 and words["recompute"] == "none":
        words["offload"] = draw(st.sampled_from(["none", "activations"]))
    words["order"] = draw(st.sampled_from(["tp-dp-pp", "tp-cp-pp-dp"]))
    return words


@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(gpt=MODELS, plan=megatron_plans())
def test_megatrons_arguments_come_back(
    gpt: GPT, plan: dict[str, Any], framework: str, tmp_path: Path
) -> None:
    if framework == "megatron-bridge" and plan.get("offload") == "activations":
        plan |= {"offload": "none"}  # of whose activations Bridge has no setting
    asked = Asked(gpt, plan, None, batch_of(plan))
    assert_same(asked, there_and_back(asked, framework, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["megatron", "megatron-bridge"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(gpt=MODELS, plan=megatron_plans())
def test_three_hundred_plans_of_megatron_come_back(
    gpt: GPT, plan: dict[str, Any], framework: str, tmp_path: Path
) -> None:
    if framework == "megatron-bridge" and plan.get("offload") == "activations":
        plan |= {"offload": "none"}  # of whose activations Bridge has no setting
    asked = Asked(gpt, plan, None, batch_of(plan))
    assert_same(asked, there_and_back(asked, framework, tmp_path))


@st.composite
def torchtitan_plans(draw: st.DrawFn) -> dict[str, Any]:
    """Plans of a model of 32 layers that torchtitan can be told."""
    words = {key: draw(values) for key, values in COMMON.items()}
    words["zero"] = draw(st.sampled_from([0, 3]))
    if words["cp"] > 1:  # torchtitan shards over the parts of sequences
        words["zero"] = 3
    if words["pp"] > 1:
        many = words["pp"] > 2  # of four micro-batches, where DualPipeV wants two a stage
        schedules = ["1f1b", "gpipe", "zb-v", *([] if many else ["dualpipe-v"])]
        words["schedule"] = draw(st.sampled_from(schedules))
        chunks = {"1f1b": [1, 2, 4], "gpipe": [1]}.get(words["schedule"], [2])
        words["vpp"] = draw(st.sampled_from(chunks))
    if words["zero"] == 3 and words["dp"] == 8:
        words["shard"] = draw(st.sampled_from([0, 2, 4]))
    words["reshard"] = draw(st.booleans())
    words["sp"] = words["tp"] > 1
    words["precision"] = draw(st.sampled_from(["bf16", "fp8"]))
    shards = words["zero"] == 3 and words["dp"] * words["cp"] > 1
    if shards and (words["pp"], words["precision"]) == (1, "bf16"):
        words["offload"] = draw(st.sampled_from(["none", "parameters"]))
    return words


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(plan=torchtitan_plans())
def test_torchtitans_toml_comes_back(plan: dict[str, Any], tmp_path: Path) -> None:
    asked = Asked(find_model("llama-3.1-8b"), plan, None, batch_of(plan))
    assert_same(asked, there_and_back(asked, "torchtitan", tmp_path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    zero=st.sampled_from([0, 1, 2, 3]),
    dp=st.sampled_from([2, 8]),
    mbs=st.sampled_from([1, 2]),
    gradients=st.sampled_from(["fp32", "bf16"]),
    beside=st.booleans(),
    shard=st.sampled_from([0, 2]),
    offload=st.sampled_from(["none", "update", "parameters"]),
    share=st.sampled_from([1.0, 0.5]),
)
def test_deepspeeds_json_comes_back(
    tmp_path: Path, *, beside: bool, share: float, **words: Any
) -> None:
    if words["zero"] < 3:
        del words["shard"]
    if words["zero"] == 3 and words["offload"] == "update":
        words["offload_share"] = share
    if words["zero"] < {"none": 0, "update": 1, "parameters": 3}[words["offload"]]:
        del words["offload"]
    found = {0: "none", 1: "dp", 2: "ors+dp", 3: "ors+oag"}[words["zero"]]
    plan = words | {"overlap": found if beside else "none"}
    asked = Asked(find_model("llama-3.1-8b"), plan, None, batch_of(words))
    assert_same(asked, there_and_back(asked, "deepspeed", tmp_path, model="llama-3.1-8b"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(sizes=st.tuples(*[st.sampled_from([1, 2, 4])] * 4))
def test_axonns_grid_comes_back(sizes: tuple[int, ...], tmp_path: Path) -> None:
    plan = dict(zip(("tp", "y", "z", "dp"), sizes, strict=True))
    asked = Asked(find_model("gpt-5b"), plan, None, None)
    question = there_and_back(asked, "axonn", tmp_path, model="gpt-5b")
    assert {**dict.fromkeys(plan, 1), **question.plan} == plan


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("fp8-delayed", ("--fp8-format hybrid", "--fp8-recipe delayed", "history-len 16")),
        ("fp8-tensorwise", ("--fp8-format hybrid", "--fp8-recipe tensorwise")),
        ("fp8-blockwise", ("--fp8-format e4m3", "--fp8-recipe blockwise")),
        ("mxfp8", ("--fp8-format e4m3", "--fp8-recipe mxfp8")),
        ("nvfp4", ("--fp4-format e2m1", "--fp4-recipe nvfp4")),
    ],
)
def test_recipes_have_megatrons_names_and_come_back(
    recipe: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Another recipe read again would have been refused by name."""
    plan = f"tp=2,dp=rest,mbs=1,sp=true,precision={recipe}"
    asked = ("export", "llama-3.1-8b", "-n", "64", "--batch", "256", "--plan", plan)
    said = simgpt(*asked, "--to", "megatron")
    assert said.status == 0, said.err
    assert [each for each in words if each not in said.out] == []
    script = tmp_path / "run.sh"
    script.write_text(said.out)
    assert f"recipe={recipe}" in simgpt("import", str(script)).out


def test_experts_on_latent_columns_in_nvfp4_come_back(tmp_path: Path) -> None:
    asked = ("export", "mixtral-8x7b", "-n", "64", "--batch", "512", "--to", "megatron")
    plan = "dp=rest,ep=8,mbs=1,zero=1,precision=nvfp4"
    said = simgpt(*asked, "--plan", plan, "--model-set", "expert_latent=1024")
    assert said.status == 0, said.err
    script = tmp_path / "run.sh"
    script.write_text(said.out)
    found = simgpt("import", str(script)).out
    assert [word for word in ("recipe=nvfp4", "ep=8", "latent") if word not in found] == []


def test_a_recipe_that_no_arguments_tell_is_refused() -> None:
    asked = ("export", "llama-3.1-8b", "-n", "64", "--batch", "256", "--to", "torchtitan")
    said = simgpt(*asked, "--plan", "dp=rest,zero=3,mbs=1,precision=mxfp8")
    assert said.status == 3
    assert_names(said.err, "recipe=mxfp8", "torchtitan")
