"""gpt-oss in Megatron-LM's arguments: clamped SwiGLU, sinks, YaRN, windows, biases of experts."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.files import BRIDGE, MEGATRON, TORCHTITAN, Described
from simgpt.frameworks.imported_job import ImportedJob, shape_of
from simgpt.frameworks.importing import job_from
from simgpt.frameworks.rendering import rendered
from tests.messages import assert_names, names
from tests.simgpt.frameworks.asked import Asked, exported
from tests.simgpt.frameworks.test_experts import USUAL, changed
from tests.simgpt.frameworks.test_experts import asked as of_swiglu
from tests.simgpt.frameworks.test_round_trips import assert_same, session, there_and_back
from workload.errors import ModelError, PlanCannotRunError
from workload.gpt import GPT, find_model

__all__ = ["session"]  # the fixture

OSS = find_model("gpt-oss-120b")
NUMBERS = "yarn:factor=32:original_max_position_embeddings=4096"
SCALING = f"{NUMBERS}:attention_factor=1.34657359028"
OTHER = f"{NUMBERS}:beta_fast=16:beta_slow=2:attention_factor=1.2"
YARN = OSS.changed(sequence=131072, rope_scaling=f"{SCALING}:truncate=0")
DENSE = YARN.changed(experts=0, topk=0, expert_ffn=0, router="softmax")
SPREAD = USUAL | {"tp": 2, "sp": True, "ep": 8, "etp": 1}
SPLIT = SPREAD | {"cp": 2, "context_kind": "ulysses"}
GATE = {"quick_geglu": True, "swiglu": None}
CLAMPED = GATE | {"glu_linear_offset": 1.0, "activation_func_clamp_value": 7.0}
# The model's arguments in examples/post_training/modelopt/conf/openai/gpt-oss-120b.sh of
# NVIDIA/Megatron-LM@d98e8a6, and no dropout.
PUBLISHED = (
    "num-layers=36 hidden-size=2880 ffn-hidden-size=2880 num-attention-heads=64 kv-channels=64 "
    "group-query-attention num-query-groups=8 normalization=RMSNorm num-experts=128 "
    "moe-ffn-hidden-size=2880 moe-router-topk=4 moe-router-dtype=fp32 moe-aux-loss-coeff=0.0 "
    "moe-router-load-balancing-type=aux_loss moe-token-dispatcher-type=alltoall seq-length=4096 "
    "max-position-embeddings=40960 rotary-base=150000 padded-vocab-size=201088 quick-geglu "
    "untie-embeddings-and-output-weights glu-linear-offset=1.0 softmax-type=learnable bf16 "
    "window-attn-skip-freq=2 activation-func-clamp-value=7.0 window-size=127,0 enable-gpt-oss "
    "micro-batch-size=1 position-embedding-type=rope moe-grouped-gemm "
    "attention-dropout=0.0 hidden-dropout=0.0"
)


def asked(**settings: Any) -> ImportedJob:
    """The question of a small model with further arguments."""
    return of_swiglu(**settings)


def of_words(text: str, **further: Any) -> ImportedJob:
    """The question of `name=value` words, and of further arguments, `_` for `-`."""
    pairs = (word.partition("=") for word in text.split())
    settings: dict[str, Any] = {name: value or True for name, _, value in pairs}
    settings |= {name.replace("_", "-"): value for name, value in further.items()}
    return job_from([Described(MEGATRON, settings)], devices=8, changed={})


@pytest.mark.parametrize("framework", [MEGATRON, BRIDGE])
@pytest.mark.parametrize(
    ("gpt", "plan"),
    [
        (OSS, SPREAD),
        (YARN, SPLIT),
        (YARN.changed(rope_scaling=OTHER), SPLIT),
        (OSS.changed(dense_layers=4), SPREAD),
        (DENSE, USUAL),
        (replace(find_model("mixtral-8x7b"), biases=True, activation="gelu"), USUAL),
    ],
)
def test_it_comes_back(gpt: GPT, plan: dict[str, Any], framework: str, tmp_path: Path) -> None:
    question = Asked(gpt, plan, None, 64)
    again = there_and_back(question, framework, tmp_path)
    assert_same(question, again)
    assert again.gpt is not None
    fields = ("activation", "sinks", "biases", "window", "global_every", "rope_scaling")
    assert [again.gpt.value(name) for name in fields] == [gpt.value(name) for name in fields]


def test_an_export_has_the_arguments_that_megatron_reads() -> None:
    """Their kinds as NVIDIA/Megatron-LM@d98e8a6 has them: megatron/training/arguments.py, and
    TransformerConfig for those that are made of its fields."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    switches = ("quick-geglu", "no-yarn-correction-range-round-to-int", "no-bias-dropout-fusion")
    for name in switches:
        parser.add_argument(f"--{name}", action="store_true")
    reals = ("glu-linear-offset", "activation-func-clamp-value", "rotary-scaling-factor")
    for name in (*reals, "yarn-beta-fast", "yarn-beta-slow", "mscale", "mscale-all-dim"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("yarn-original-max-position-embeddings", "window-attn-skip-freq"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("position-embedding-type", "softmax-type", "window-size", "cp-comm-type"):
        parser.add_argument(f"--{name}")
    written = rendered(exported(Asked(YARN, SPLIT, None, 64), MEGATRON))
    found, others = parser.parse_known_args(shlex.split(written.replace("\\\n", " ")))
    assert all(getattr(found, name.replace("-", "_")) for name in switches)
    assert (found.glu_linear_offset, found.activation_func_clamp_value) == (1.0, 7.0)
    assert (found.position_embedding_type, found.rotary_scaling_factor) == ("yarn", 32.0)
    assert (found.yarn_original_max_position_embeddings, found.mscale_all_dim) == (4096, 0.0)
    assert (found.yarn_beta_fast, found.yarn_beta_slow, found.mscale) == (32.0, 1.0, 1.0)
    assert (found.softmax_type, found.cp_comm_type) == ("learnable", "a2a")
    assert (found.window_size, found.window_attn_skip_freq) == ("127,0", 2)
    assert not {"--disable-bias-linear", "--swiglu", "--no-bias-gelu-fusion"} & set(others)


def test_sinks_are_in_fused_attention_whatever_the_stack() -> None:
    """Transformer Engine's flash attention has none."""
    question = Asked(OSS, SPREAD, None, 64)
    assert exported(question, MEGATRON, "simgpt").settings["attention-backend"] == "fused"
    plain = replace(question, gpt=OSS.changed(sinks=False))
    assert exported(plain, MEGATRON, "simgpt").settings["attention-backend"] == "flash"


def test_the_published_arguments_are_the_preset() -> None:
    found = of_words(PUBLISHED)
    assert found.question.model == "gpt-oss-120b"
    assert found.gpt is not None
    assert found.gpt.parameters == OSS.parameters == 116_829_156_672
    assert set(changed(found)) == {"--enable-gpt-oss"}
    plain = of_words(PUBLISHED, disable_bias_linear=True).gpt
    assert plain is not None
    assert shape_of(plain) == shape_of(replace(OSS, biases=False))


def test_yarn_is_said_beside_the_preset() -> None:
    """0.1 ln 32 + 1 = 1.3466, with the weights of Megatron-LM's own defaults."""
    words = {"position_embedding_type": "yarn", "rotary_scaling_factor": 32.0}
    found = of_words(PUBLISHED, **words, no_yarn_correction_range_round_to_int=True)
    assert found.question.model == "gpt-oss-120b"
    assert found.question.model_set == {"rope_scaling": f"{SCALING}:truncate=0"}
    other = of_words(PUBLISHED, **words, mscale=0.5, yarn_beta_fast=16).gpt
    assert other is not None
    assert other.attention.rope_scaling == f"{NUMBERS}:beta_fast=16:attention_factor=1.17328679514"
    even = of_words(PUBLISHED, **words, mscale_all_dim=1.0)
    assert (even.question.model, even.question.model_set) == (
        "gpt-oss-120b",
        {},
    )  # 1 takes no kernels of its own


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"rotary_scaling_factor": 0}, "factor=0"),
        ({"rotary_scaling_factor": 32, "mscale_all_dim": -9}, "attention_factor=0"),
    ],
)
def test_a_scaling_of_no_sense_is_refused(words: dict[str, float], named: str) -> None:
    with pytest.raises(ModelError, check=names(named)):
        of_words(PUBLISHED, position_embedding_type="yarn", **words)


@pytest.mark.parametrize("settings", [GATE, GATE | {"quick_geglu": None, "geglu": True}])
def test_a_gate_counts_as_swiglu(settings: dict[str, Any]) -> None:
    """Each expert has three matrices; without a gate it would have two."""
    found, usual = asked(**settings), asked()
    assert found.gpt is not None
    assert usual.gpt is not None
    same = found.gpt.changed(ffn=usual.gpt.ffn, expert_ffn=usual.gpt.moe.expert_ffn)
    assert shape_of(same) == shape_of(usual.gpt)
    for why in changed(found).values():
        assert_names(why, "SwiGLU")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, {}),
        (
            {"activation_func_clamp_value": 10},
            {"--activation-func-clamp-value": "7"},
        ),
        ({"glu_linear_offset": 0.5}, {"--glu-linear-offset": "1"}),
        ({"glu_linear_offset": 0}, {"--quick-geglu": "1"}),
        ({"softmax_type": "vanilla"}, {}),
        ({"softmax_type": "off-by-one"}, {"--softmax-type": "softmax"}),
    ],
)
def test_other_numbers_than_gpt_oss_are_said(
    settings: dict[str, Any], said: dict[str, str]
) -> None:
    found = asked(**CLAMPED | settings)
    assert found.gpt is not None
    assert (found.gpt.activation, found.gpt.attention.sinks) == ("clamped_swiglu", False)
    why = changed(found)
    assert why.keys() == said.keys()
    for name, number in said.items():
        assert_names(why[name], number)


@pytest.mark.parametrize(
    ("gated", "activation"), [(True, "clamped_swiglu"), (None, "clamped_swiglu"), (False, "gelu")]
)
def test_a_recipe_names_its_activation(gated: bool | None, activation: str) -> None:
    """`activation_func` as Megatron-Bridge's GPTOSSBridge sets it."""
    settings = {
        **{"model.num_layers": 4, "model.hidden_size": 256, "model.num_attention_heads": 4},
        **{"model.seq_length": 512, "model.vocab_size": 1000, "train.micro_batch_size": 1},
        "model.activation_func": "megatron.core.fusions.fused_bias_geglu.quick_gelu",
        "model.activation_func_clamp_value": 7.0,
        "model.glu_linear_offset": 1.0,
        "model.gated_linear_unit": gated,
    }
    found = job_from([Described(BRIDGE, settings)], devices=8, changed={})
    assert found.gpt is not None
    assert found.gpt.activation == activation


def test_a_scaling_that_no_argument_tells_is_refused() -> None:
    """Of a factor of 1 YaRN multiplies queries and keys by 1 alone; torchtitan has no YaRN."""
    odd = "yarn:factor=1:original_max_position_embeddings=4096:attention_factor=1.5"
    with pytest.raises(PlanCannotRunError, check=names(f"rope_scaling={odd}")):
        exported(Asked(OSS.changed(rope_scaling=odd), SPREAD, None, 64), MEGATRON)
    llama = find_model("llama-3.1-8b").changed(rope_scaling=f"{SCALING}:truncate=0")
    with pytest.raises(PlanCannotRunError, check=names("torchtitan", "rope_scaling")):
        exported(Asked(llama, {"dp": 8}, None, 8), TORCHTITAN)
