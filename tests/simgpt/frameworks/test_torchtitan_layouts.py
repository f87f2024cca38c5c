"""torchtitan's TOML of releases before March 2025, and the presets of its flavours."""

from __future__ import annotations

from typing import Any

import pytest

from simgpt.frameworks.files import TORCHTITAN, Described
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import job_from, table_of
from workload.gpt import find_model

MODEL = {"model.name": "llama3", "model.flavor": "8B"}
OLDER: dict[str, Any] = {
    "training.batch_size": 8,
    "training.data_parallel_shard_degree": -1,
    "training.tensor_parallel_degree": 4,
    "training.compile": True,
    "experimental.pipeline_parallel_degree": 2,
    "experimental.pipeline_parallel_schedule": "Interleaved1F1B",
    "experimental.pipeline_parallel_microbatches": 8,
    "float8.enable_float8_linear": True,
}


def titan(devices: int = 64, **settings: Any) -> ImportedJob:
    """The question of settings, `__` for the dot."""
    own = {name.replace("__", "."): value for name, value in settings.items()}
    return job_from([Described(TORCHTITAN, {**MODEL, **own})], devices=devices, changed={})


def test_the_older_layout_is_the_same_plan() -> None:
    """64 devices over 4 x 2 leave 8 ranks of data; 8 sequences of a rank in 8 micro-batches."""
    question = titan(**{name.replace(".", "__"): value for name, value in OLDER.items()})
    plan = question.plan
    assert (plan["tp"], plan["pp"], plan["vpp"], plan["mbs"]) == (4, 2, 2, 1)
    assert (plan["zero"], plan["reshard"], plan["precision"]) == (3, False, "fp8")
    assert (question.question.batch, question.question.stack) == (64, "torchtitan")
    assert not plan.get("ends_as_layers", False)
    assert question.changes == ()


def test_older_pipelines_have_as_many_micro_batches_as_stages() -> None:
    plan = titan(training__batch_size=8, experimental__pipeline_parallel_degree=4).plan
    assert plan["mbs"] == 2
    refused = titan(
        training__batch_size=8,
        experimental__pipeline_parallel_degree=4,
        experimental__pipeline_parallel_microbatches=3,
    ).refused
    assert [each.name for each in refused] == ["experimental.pipeline_parallel_microbatches"]


@pytest.mark.parametrize("name", ["experimental__no_such", "sections__tensor_parallel_degree"])
def test_a_section_that_is_not_known_never_counts_as_without_effect(name: str) -> None:
    question = titan(**{name: 2})
    assert [each.name for each in question.changes] == [name.replace("__", ".")]


@pytest.mark.parametrize(("flavour", "preset"), table_of(TORCHTITAN)["models"].items())
def test_every_flavour_stands_for_a_preset(flavour: str, preset: str) -> None:
    name, _, word = flavour.partition(".")
    assert find_model(preset).name == preset
    assert titan(model__name=name, model__flavor=word).question.model == preset


def test_ranks_of_experts_of_llama_4_are_read() -> None:
    """8 ranks of tensor parallelism hold whole experts, different ones."""
    question = titan(
        model__name="llama4",
        model__flavor="17bx16e",
        parallelism__tensor_parallel_degree=8,
        parallelism__expert_parallel_degree=8,
    )
    assert (question.plan["ep"], question.plan["etp"]) == (8, 1)
    assert question.question.model == "llama-4-scout"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        # torchtrain of March 2024: tensor parallelism under its first name.
        ({"training__sequence_parallel_degree": 4, "training__data_parallel_degree": -1},
         {"tp": 4, "zero": 3}),
        ({"training__enable_selective_ac": True}, {"recompute": "selective"}),
        ({"training__enable_selective_ac": False}, {"recompute": "full"}),
        # April 2024: fp8 by the kind of its scales; later a switch.
        ({"training__fp8_linear": "dynamic"}, {"precision": "fp8"}),
        ({"training__fp8_linear": ""}, {"precision": None}),
        ({"training__fp8_linear": True}, {"precision": "fp8"}),
        # August 2024: DDP by its name; October: by degrees.
        ({"training__data_parallel_type": "ddp"}, {"zero": 0}),
        ({"training__data_parallel_type": "ddp", "training__data_parallel_degree": 16,
          "training__tensor_parallel_degree": 4}, {"zero": 0, "tp": 4}),
        ({"training__data_parallel_type": "fsdp"}, {"zero": 3}),
        ({"training__data_parallel_replicate_degree": 8}, {"zero": 3, "shard": 8}),
        # February 2025.
        ({"training__fsdp_reshard_after_forward": "never"}, {"zero": 3, "reshard": False}),
    ],
)  # fmt: skip
def test_each_older_name_is_read(settings: dict[str, Any], told: dict[str, Any]) -> None:
    question = titan(**settings)
    assert {key: question.plan.get(key) for key in told} == told
    assert question.changes == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("experimental__enable_compiled_autograd", True),
        ("experimental__pipeline_parallel_split_mode", "manual"),
        ("training__checkpoint_interval", 3600),
        ("float8__scaling_type_input", "dynamic"),
        ("model__attn_mask_type", "causal"),
    ],
)
def test_older_names_that_bear_on_nothing_are_known(name: str, value: Any) -> None:
    assert titan(**{name: value}).unknown == ()
