"""Packed documents in Megatron-LM's arguments and in recipes: what is said, and what is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.files import MEGATRON
from simgpt.frameworks.importing import imported
from tests.messages import assert_names, names
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_experts import asked, changed
from workload.errors import PlanCannotRunError
from workload.gpt import GPT, find_model

BRIDGE = "megatron-bridge"
SIZE = "dataset.packed_sequence_specs.packed_sequence_size"
LLAMA = replace(find_model("llama-3.1-8b"), sequence=8192)
RECIPE = """\
model:
  num_layers: 32
  seq_length: 8192
train:
  micro_batch_size: 1
  global_batch_size: 128
mixed_precision: bf16_mixed
dataset:
  packed_sequence_specs:
    packed_sequence_size: SIZE
ddp: {use_distributed_optimizer: true}
"""


def question(gpt: GPT, **plan: Any) -> Asked:
    return Asked(gpt, {"tp": 2, "dp": 4, "batch": 8, "mbs": 1, **plan}, None, 8)


def test_a_mask_of_documents_is_said_to_be_none_of_the_kernels() -> None:
    found = changed(asked(reset_attention_mask=True, reset_position_ids=True, eod_mask_loss=True))
    assert [name for name in found if "reset" in name or "eod" in name] == [
        "--reset-attention-mask"
    ]
    assert_names(changed(asked(sft=True))["--sft"], "documents=4096+2x2048")


@pytest.mark.parametrize(("size", "told"), [("8192", [SIZE]), ("-1", []), ("0", []), ("null", [])])
def test_a_recipe_that_packs_says_no_lengths(size: str, told: list[str], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.replace("SIZE", size))
    found = imported([path], devices=8, model="llama-3.1-8b")
    assert [each.name for each in found.changes] == told
    packed = imported([path], devices=8, model="llama-3.1-8b", changed={"documents": "4096+2x2048"})
    assert packed.gpt is not None
    assert packed.gpt.packing.documents == "4096+2x2048"


@pytest.mark.parametrize("fields", [{"document": 4096}, {"documents": "4096+2x2048"}])
def test_a_recipe_is_told_that_sequences_are_packed(fields: dict[str, Any]) -> None:
    packed = LLAMA.changed(**fields)
    answer = exported(question(packed), BRIDGE)
    assert answer.settings[SIZE] == 8192
    key, value = next(iter(fields.items()))
    (note,) = (each for each in answer.notes if key in each)
    assert_names(note, f"{key}={value}")
    assert SIZE not in exported(question(LLAMA), BRIDGE).settings
    with pytest.raises(PlanCannotRunError, check=names("mbs=1", "2")):
        exported(question(packed, mbs=2), BRIDGE)
    with pytest.raises(PlanCannotRunError, check=names(f"{key}={value}")):
        exported(question(packed), MEGATRON)


def test_gathered_latents_have_no_setting() -> None:
    latents = {"cp": 2, "dp": 4, "tp": 1, "context_kind": "all_gather"}
    plan = question(find_model("deepseek-v2-lite"), context_latents=True, **latents)
    with pytest.raises(PlanCannotRunError, check=names("context_latents=true")):
        exported(plan, MEGATRON)
