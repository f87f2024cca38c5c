"""Names of Megatron-Bridge's and NeMo's mixed precision, which are the tables they stand for.

Sources: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/mixed_precision.py, of nvfp4 its
later releases; NVIDIA/NeMo, nemo/collections/llm/recipes/precision/mixed_precision.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, NEMO, Described
from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import job_from
from tests.messages import assert_names

M = "mixed_precision."
BRAIN: dict[str, Any] = {M + "bf16": True}
HALF: dict[str, Any] = {M + "fp16": True}
GATHERED = {M + "fp8_param_gather": True}
ENDS = {M + "first_last_layers_bf16": True}


def eight(form: str, recipe: str) -> dict[str, Any]:
    return {M + "fp8": form, M + "fp8_recipe": recipe}


def asked(framework: str = BRIDGE, **settings: Any) -> ImportedJob:
    own = {"model.tensor_model_parallel_size": 2, "train.micro_batch_size": 1, **settings}
    return job_from([Described(framework, own)], devices=64, model="llama-3.1-8b", changed={})


@pytest.mark.parametrize(
    ("name", "table", "recipe"),
    [
        ("bf16_mixed", BRAIN, None),
        ("fp16-mixed", HALF, None),
        ("bf16_with_fp8_delayed_scaling_mixed",
         BRAIN | eight("hybrid", "delayed") | GATHERED, "fp8-delayed"),
        ("bf16-with-fp8-current-scaling-mixed",
         BRAIN | eight("hybrid", "tensorwise") | ENDS | GATHERED, "fp8-tensorwise"),
        ("nanov2_bf16_with_fp8_current_scaling_mixed",
         BRAIN | eight("hybrid", "blockwise") | ENDS | GATHERED, "fp8-blockwise"),
        ("nemotron_h_bf16_with_fp8_current_scaling_mixed",
         BRAIN | eight("hybrid", "tensorwise") | ENDS | GATHERED, "fp8-tensorwise"),
        ("bf16_with_fp8_subchannel_scaling_mixed",
         BRAIN | eight("hybrid", "blockwise"), "fp8-blockwise"),
        ("bf16_with_mxfp8_mixed", BRAIN | eight("e4m3", "mxfp8") | GATHERED, "mxfp8"),
        ("fp16_with_mxfp8_mixed", HALF | eight("e4m3", "mxfp8") | GATHERED, "mxfp8"),
        ("bf16_with_nvfp4_mixed", BRAIN | {M + "fp4": "e2m1", M + "fp4_recipe": "nvfp4"}, "nvfp4"),
    ],
)  # fmt: skip
def test_a_name_is_the_table_that_it_stands_for(
    name: str, table: dict[str, Any], recipe: str | None
) -> None:
    named, told = asked(mixed_precision=name), asked(**table)
    assert named.plan == told.plan
    assert named.plan.get("recipe") == recipe
    assert [each.why for each in named.changes] == [each.why for each in told.changes]


def test_nemos_fp8_has_delayed_scales() -> None:
    question = asked(NEMO, **{"trainer.precision": "bf16_with_fp8_mixed"})
    assert question.plan["recipe"] == "fp8-delayed"


@pytest.mark.parametrize(
    "name", ["bf16_with_foo", "foo_bf16_with_mxfp8_mixed", "bf8_mixed", "bf16_with_fp8_mixedup"]
)
def test_an_unknown_name_is_said(name: str) -> None:
    question = asked(mixed_precision=name)
    assert not {"precision", "recipe"} & question.plan.keys()
    said = next(each for each in question.changes if each.name == "mixed_precision")
    assert str(said) == f"mixed_precision {name}"
    assert_names(said.why, "bf16")


@pytest.mark.parametrize(("name", "precision"), [("32", "fp32"), ("bf16-true", "bf16")])
def test_nemos_words_for_a_dtype_are_no_recipes(name: str, precision: str) -> None:
    question = asked(NEMO, **{"trainer.precision": name})
    assert question.plan.get("precision", "bf16") == precision
    assert question.changes == ()
