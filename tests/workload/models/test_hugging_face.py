"""Configs of Hugging Face: released models, what a config leaves open, and what is refused.

The configs' facts are the published ones (`configs/README.md` names the sources).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.messages import assert_names, names
from workload.descriptions.described import Described
from workload.descriptions.hugging_face import model_from_config
from workload.descriptions.read import described_model
from workload.errors import ModelError
from workload.gpt import find_model
from workload.models.moe import has_experts
from workload.models.rope_scaling import scaling_of

CONFIGS = Path(__file__).parent / "configs"


def released(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def described(name: str, changes: Mapping[str, Any] | None = None) -> Described:
    return model_from_config(released(name) | dict(changes or {}), "c.json", name="own")


def notes(found: Described, **given: Any) -> list[str]:
    return [
        text.removeprefix("own: ") for text in found.notes_on(found.gpt.changed(**given), given)
    ]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt2", 124_439_808),
        ("llama-3.1-8b", 8_030_261_248),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-8b", 8_190_735_360),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_a_config_has_the_published_parameters(name: str, published: int) -> None:
    found = described_model(str(CONFIGS / f"{name}.json"))
    assert found.gpt.parameters == published
    assert not any("not modelled" in note.text for note in found.notes if not note.above)


def balanced(weight: float, over: str = "micro_batch") -> dict[str, Any]:
    """The fields of a loss of uneven use."""
    return {"balance_loss": weight, "balance_over": over}


@pytest.mark.parametrize(
    ("name", "preset", "own"),
    [
        ("gpt2", "gpt2", {"dropout": 0.1}),
        ("llama-3.1-8b", "llama-3.1-8b", {"sequence": 131_072}),
        ("mistral-7b-v0.1", "mistral-7b", {"sequence": 32_768}),
        ("qwen2.5-7b", "qwen2.5-7b", {"sequence": 131_072}),
        ("qwen3-8b", "qwen3-8b", {"sequence": 40_960, "head_width": 0}),  # 4096 / 32 anyway
        ("mixtral-8x7b", "mixtral-8x7b", {"sequence": 32_768} | balanced(0.02)),
        ("qwen3-30b-a3b", "qwen3-30b-a3b", {"sequence": 40_960} | balanced(0.001)),
    ],
)
def test_a_config_is_the_preset_but_for_its_longest_sequence(
    name: str, preset: str, own: dict[str, Any]
) -> None:
    found = described(name).gpt
    source = f"a config.json of Hugging Face, family {released(name)['model_type']}"
    assert found == find_model(preset).changed(name="own", source=source, **own)


ABSENT = {  # the signatures of transformers' classes
    "gpt2": ("gelu", "learned", True, True, 12, 768, 12, 12, 64, 3072, 1024, 50257, 0.1),
    "llama": ("swiglu", "rope", False, False, 32, 4096, 32, 32, 128, 11008, 2048, 32000, 0.0),
    "mistral": ("swiglu", "rope", False, False, 32, 4096, 32, 8, 128, 14336, 131072, 32000, 0.0),
    "qwen2": ("swiglu", "rope", False, False, 32, 4096, 32, 32, 128, 22016, 32768, 151936, 0.0),
    "qwen3": ("swiglu", "rope", False, False, 32, 4096, 32, 32, 128, 22016, 32768, 151936, 0.0),
}


@pytest.mark.parametrize("family", ABSENT)
def test_an_empty_config_is_what_transformers_takes_it_for_and_says_so(family: str) -> None:
    found = model_from_config({"model_type": family}, "c.json", name="own")
    gpt = found.gpt
    assert ABSENT[family] == (
        *(
            gpt.activation,
            gpt.positions,
            gpt.biases,
            gpt.tied,
            gpt.layers,
            gpt.hidden,
            gpt.attention.heads,
        ),
        *(gpt.key_heads, gpt.width, gpt.ffn, gpt.sequence, gpt.vocab, gpt.dropout),
    )
    first, *_ = notes(found)
    assert_names(first, family, "vocab_size", str(gpt.vocab))
    assert_names(first, "tie_word_embeddings", str(gpt.tied).lower())


def test_heads_of_qwen3_are_128_wide_whatever_the_width_is() -> None:
    config = released("qwen3-8b")
    del config["head_dim"]
    narrow = model_from_config(config | {"hidden_size": 1024}, "c.json", name="own").gpt
    assert narrow.width == 128
    assert described("llama-3.1-8b", {"hidden_size": 1024}).gpt.width == 32


@pytest.mark.parametrize(
    ("step", "dense", "those"),
    [(1, [], (0, 1)), (1, [0, 1], (2, 1)), (3, [], (0, 3)), (2, [1], (2, 2)), (1, None, (0, 1))],
)
def test_layers_with_experts_are_counted_as_a_model_has_them(
    step: int, dense: list[int] | None, those: tuple[int, int]
) -> None:
    changes = {"decoder_sparse_step": step, "mlp_only_layers": dense, "norm_topk_prob": False}
    gpt = described("qwen3-30b-a3b", changes).gpt
    assert (gpt.moe.dense_layers, gpt.moe.expert_every) == those
    assert gpt.moe.router == "softmax"
    with_them = [n for n in range(48) if (n + 1) % step == 0 and n not in (dense or [])]
    assert [n for n in range(48) if has_experts(gpt, n)] == with_them


def test_an_empty_config_of_deepseek_v3_is_the_preset_and_says_what_it_leaves_out() -> None:
    yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    yarn |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    config = {"model_type": "deepseek_v3", "rope_scaling": yarn, "num_nextn_predict_layers": 1}
    found = model_from_config(config, "c.json", name="own")
    scaling = "yarn:factor=40:original_max_position_embeddings=4096:attention_factor=1"
    preset = find_model("deepseek-v3").changed(
        balance_loss=0.0, rope_scaling=f"{scaling}:mscale_all_dim=1"
    )
    assert found.gpt == replace(preset, name="own", source=found.gpt.source)
    (said,) = notes(found)[2:]
    assert "num_nextn_predict_layers = 1" in said
    assert "--model-set mtp_layers=1" in said
    lite = {"model_type": "deepseek_v2", "q_lora_rank": None, "num_experts_per_tok": 6}
    gpt = model_from_config(lite, "c.json", name="own").gpt
    assert (gpt.latent.q_rank, gpt.moe.shared_ffn, gpt.moe.dense_layers, gpt.moe.router) == (
        0,
        2814,
        0,
        "softmax",
    )
    groups = lite | {"n_group": 8, "topk_group": 3}  # which "greedy" does not ask
    assert model_from_config(groups, "c.json", name="own").gpt.moe.router_groups == 0
    groups |= {"topk_method": "group_limited_greedy"}
    gpt = model_from_config(groups, "c.json", name="own").gpt
    assert (gpt.moe.router_groups, gpt.moe.router_topk_groups) == (8, 3)
    for key, value in {"moe_layer_freq": 2, "n_shared_experts": "x", "kv_lora_rank": 0}.items():
        with pytest.raises(ModelError, match=key):
            model_from_config(lite | {key: value}, "c.json", name="own")


@pytest.mark.parametrize("logits", [False, True])
def test_a_loss_of_uneven_use_is_read_and_said(logits: bool) -> None:
    given = described("qwen3-30b-a3b", {"output_router_logits": logits})
    assert (given.gpt.moe.balance_loss, given.gpt.moe.balance_over) == (0.001, "micro_batch")
    assert_names(notes(given)[-1], "router_aux_loss_coef", "0.001")
    assert not any("router_aux" in text for text in given.notes_on(given.gpt, {"balance_loss"}))
    for none in (0, 0.0, None):
        without = described("qwen3-30b-a3b", {"router_aux_loss_coef": none})
        assert without.gpt.moe.balance_loss == 0
        assert not any("router_aux" in text for text in notes(without))


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({"aux_loss_alpha": 0.001, "seq_aux": True}, balanced(0.001, "sequence")),
        ({"aux_loss_alpha": 0.001, "seq_aux": False}, balanced(0.001)),
        ({"seq_aux": True}, balanced(0.0, "sequence")),
    ],
)
def test_deepseeks_loss_of_uneven_use_is_over_what_its_config_says(
    family: str, keys: dict[str, Any], fields: dict[str, Any]
) -> None:
    config = {"model_type": family, "num_experts_per_tok": 6} | keys
    found = model_from_config(config, "c.json", name="own")
    assert {key: found.gpt.value(key) for key in fields} == fields
    others = [note.text for note in found.notes if note.field != "balance_loss"]
    assert not any(key in text for key in keys for text in others)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"router_aux_loss_coef": -1}, ("router_aux_loss_coef", "-1", "0")),
        ({"router_aux_loss_coef": True}, ("router_aux_loss_coef", "true")),
        ({"router_aux_loss_coef": "x"}, ("router_aux_loss_coef", "x")),
        ({"mlp_only_layers": [3]}, ("decoder_sparse_step", "mlp_only_layers", "[3]")),
        ({"mlp_only_layers": list(range(48))}, ("decoder_sparse_step", "mlp_only_layers", "47]")),
        ({"mlp_only_layers": "all"}, ("mlp_only_layers", "all")),
        ({"decoder_sparse_step": 0}, ("decoder_sparse_step", "0", "layers")),
        ({"norm_topk_prob": 1}, ("norm_topk_prob", "1", "true", "false")),
        ({"num_experts_per_tok": 200}, ("topk=200", "experts=128")),
        ({"n_routed_experts": 8}, ("n_routed_experts", "8")),
    ],
)
def test_experts_that_are_none_are_refused_by_their_key(
    changes: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError) as error:
        described("qwen3-30b-a3b", changes)
    assert_names(str(error.value), *named)


def test_what_is_null_follows_from_other_fields() -> None:
    gpt = described("mistral-7b-v0.1", {"num_key_value_heads": None, "head_dim": None}).gpt
    assert (gpt.key_heads, gpt.width) == (32, 128)
    assert described("gpt2", {"n_inner": None}).gpt.ffn == 4 * 768


def test_the_sequence_is_the_longest_until_it_is_given() -> None:
    found = described("llama-3.1-8b")
    (said,) = notes(found)
    assert_names(
        said, "sequence", "131072", "max_position_embeddings", "--model-set", "sequence=8192"
    )
    assert notes(found, sequence=4096) == []
    absent = model_from_config({"model_type": "llama"}, "c.json", name="own")
    (said,) = (text for text in notes(absent) if "max_position_embeddings" in text)
    assert_names(said, "sequence", "2048", "llama", "transformers")


def test_a_sliding_window_of_all_layers_is_read_and_one_of_some_is_said() -> None:
    assert described("mistral-7b-v0.1").gpt.attention.window == 4096
    assert described("mistral-7b-v0.1", {"sliding_window": None}).gpt.attention.window == 0
    off = described("qwen3-8b", {"use_sliding_window": False, "sliding_window": 512})
    assert off.gpt.attention.window == 0
    assert not any("sliding_window" in text for text in notes(off))
    switched = described("qwen3-8b", {"use_sliding_window": True, "sliding_window": 512})
    assert switched.gpt.attention.window == 0  # which layers are within it, the config does not say
    (said,) = notes(switched, sequence=513)
    assert said in notes(switched)
    assert_names(said, "sliding_window", "512", "--model-set", "window", "global_every")
    assert said not in notes(switched, sequence=512)


def test_biases_of_all_linears_are_carried_and_of_some_are_said() -> None:
    both = described("llama-3.1-8b", {"attention_bias": True, "mlp_bias": True})
    attention, mlp = 32 * (4096 + 2 * 1024 + 4096), 32 * (2 * 14336 + 4096)
    assert both.gpt.biases
    assert both.gpt.parameters == 8_030_261_248 + attention + mlp
    one = described("llama-3.1-8b", {"attention_bias": True})
    assert not one.gpt.biases
    (said,) = notes(one, sequence=1)
    assert_names(said, "attention", f"{attention:,}")


def test_unequal_dropouts_are_said_and_left_out() -> None:
    found = described("gpt2", {"embd_pdrop": 0.0})
    assert found.gpt.dropout == 0.0
    (said,) = (text for text in notes(found) if "resid_pdrop" in text)
    assert_names(said, "resid_pdrop", "attn_pdrop", "0.1")
    assert said not in notes(found, dropout=0.1)


def test_a_key_that_is_not_read_is_said_unless_it_is_null_or_off() -> None:
    changes = {"partial_rotary_factor": 0.5, "is_causal": False, "use_mrope": False, "x": None}
    changes["num_experts"] = 0
    found = described("llama-3.1-8b", changes)
    (said,) = notes(found, sequence=1)
    assert "is_causal" in said
    assert not any(key in said for key in changes if key != "is_causal")
    on = described("llama-3.1-8b", {"use_mrope": True})
    (said,) = notes(on, sequence=1)
    assert_names(said, "use_mrope")


def test_another_class_of_the_family_is_said() -> None:
    found = described("llama-3.1-8b", {"architectures": ["LlamaForSequenceClassification"]})
    (said,) = notes(found, sequence=1)
    assert "LlamaForSequenceClassification" in said
    assert "LlamaForCausalLM" in said


def test_a_config_without_model_type_is_known_by_its_class() -> None:
    config = released("qwen2.5-7b")
    del config["model_type"]
    assert model_from_config(config, "c.json", name="own") == described("qwen2.5-7b")


def test_rope_theta_is_found_where_transformers_5_puts_it() -> None:
    config = released("qwen3-8b")
    del config["rope_theta"]
    within = {"rope_theta": 5000.0, "rope_type": "default"}
    found = model_from_config(config | {"rope_parameters": within}, "c.json", name="own")
    assert found.gpt.attention.rope_base == 5000
    assert not any("rope_theta" in text for text in notes(found))


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"rope_type": "default"}, "none"),
        ({"rope_type": "dynamic", "factor": 2.0}, "none"),  # not known, and no matter of time
        ({"type": "linear", "factor": 2.5}, "linear:factor=2.5"),
        (
            {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 8192},
            "llama3:factor=8:low_freq_factor=1:high_freq_factor=4:"
            "original_max_position_embeddings=8192",
        ),
        (
            {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
            | {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1},
            "yarn:factor=40:original_max_position_embeddings=4096:attention_factor=1",
        ),
        (  # factor: 131,072 over 32,768; 0.1 ln 4 + 1
            {"rope_type": "yarn", "original_max_position_embeddings": 32768, "truncate": False},
            "yarn:factor=4:original_max_position_embeddings=32768:attention_factor=1.13862943611:"
            "truncate=0",
        ),
    ],
)
def test_scaled_rope_is_carried_over_and_back(table: dict[str, Any], text: str) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        changes = {"rope_scaling": None, key: table}
        assert described("llama-3.1-8b", changes).gpt.attention.rope_scaling == text
    if scaling := scaling_of(text):
        again = {"rope_scaling": scaling.as_config()}
        assert described("llama-3.1-8b", again).gpt.attention.rope_scaling == text


def test_the_norms_epsilon_is_carried_over() -> None:
    assert described("qwen3-8b").gpt.norm_eps == 1e-6
    assert described("gpt2", {"layer_norm_epsilon": 1e-3}).gpt.norm_eps == 1e-3
    assert model_from_config({"model_type": "llama"}, "c.json", name="own").gpt.norm_eps == 1e-6


def test_a_model_is_called_by_its_folder_or_its_file(tmp_path: Path) -> None:
    text = json.dumps(released("gpt2"))
    (tmp_path / "My-GPT").mkdir()
    for name in ("My-GPT/config.json", "other.json"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert described_model(str(tmp_path / "My-GPT" / "config.json")).gpt.name == "My-GPT"
    assert described_model(str(tmp_path / "other.json")).gpt.name == "other"
    assert model_from_config(released("gpt2"), "config.json", name="").gpt.name == "gpt2"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "qwen3_next"}, ("qwen3_next", "DeltaNet")),
        ({"model_type": "deepseek_v32"}, ("deepseek_v32", "sparse")),
        ({"model_type": "kimi_linear"}, ("kimi_linear", "KDA")),
        ({"index_topk": 2048}, ("llama", "sparse")),
        ({"model_type": "own", "linear_attn_config": {"a": 1}}, ("own", "KDA")),
        ({"model_type": "mine", "n_routed_experts": 8}, ("llama", "n_routed_experts", "8")),
        ({"num_local_experts": 8}, ("llama", "num_local_experts", "8")),
        ({"model_type": "falcon_mamba"}, ("falcon_mamba", "Mamba")),
        ({"model_type": "bert"}, ("bert",)),
        ({"model_type": "gemma33", "architectures": []}, ("gemma33", "gemma3")),
        ({"model_type": 3}, ("model_type", "3")),
        ({"model_type": "", "architectures": [1]}, ("architectures", "[1]")),
        ({"rms_norm_eps": "small"}, ("rms_norm_eps", '"small"')),
        ({"hidden_act": "mish"}, ("hidden_act", "mish", "llama", "silu")),
        ({"layer_types": ["linear_attention"]}, ("layer_types", "linear_attention")),
        ({"layer_types": ["new"]}, ("layer_types", "new")),
        ({"hidden_size": None}, ("hidden_size", "null")),
        ({"hidden_size": "4096"}, ("hidden_size", '"4096"')),
        ({"hidden_size": True}, ("hidden_size", "true")),
        ({"hidden_size": 4096.5}, ("hidden_size", "4096.5")),
        ({"num_key_value_heads": 0}, ("num_key_value_heads", "0", "1")),
        ({"num_key_value_heads": 5}, ("own", "kv_heads=5", "heads=32")),
        ({"num_hidden_layers": 10**9}, ("num_hidden_layers", "1000000000", "10,000")),
        ({"tie_word_embeddings": 1}, ("tie_word_embeddings", "1", "true", "false")),
        ({"attention_bias": "no"}, ("attention_bias", '"no"', "true", "false")),
        ({"attention_dropout": "0.1"}, ("attention_dropout", '"0.1"')),
    ],
)
def test_what_cannot_be_carried_over_is_refused_by_name(
    changes: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError, check=names(*named)):
        described("llama-3.1-8b", changes)


def test_text_in_a_config_is_only_text() -> None:
    text = "__import__('os').abort()"
    for key in ("hidden_act", "num_hidden_layers", "rope_theta"):
        with pytest.raises(ModelError):
            described("llama-3.1-8b", {key: text})
    with pytest.raises(ModelError):
        described("llama-3.1-8b", {"model_type": text, "architectures": []})
    found = described("llama-3.1-8b", {"custom": {"AutoConfig": text}})
    (said,) = notes(found, sequence=1)
    assert_names(said, "custom")


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"rope_type": "llama3"}, ("rope_scaling", "llama3")),
        ({"rope_type": "linear", "factor": -1}, ("factor=-1", "0")),
        (
            {"rope_type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0},
            ("beta_fast", "beta_slow"),
        ),
        ("text", ("rope_scaling", "text")),
    ],
)
def test_a_scaling_that_cannot_be_computed_is_said_and_rejects_no_file(
    table: Any, named: tuple[str, ...]
) -> None:
    """As of Kimi K2, whose beta_fast and beta_slow are the same."""
    found = described("llama-3.1-8b", {"rope_scaling": table})
    assert found.gpt.attention.rope_scaling == "none"
    (said,) = notes(found, sequence=1)
    assert_names(said, "RoPE", *named)
    assert "rope" in found.beyond


def test_a_base_that_is_no_whole_number_is_rounded_and_said() -> None:
    found = described("llama-3.1-8b", {"rope_theta": 10000.6})
    assert found.gpt.attention.rope_base == 10_001
    assert notes(found, sequence=1) == ["rope_theta = 10000.6: rounded"]


def test_what_no_time_depends_on_is_silent() -> None:
    changes: dict[str, Any] = {"quantization_config": {"quant_method": "fp8"}}
    changes["auto_map"] = {"AutoModel": "x"}
    changes |= {"compression_config": {"a": 1}, "partial_rotary_factor": 0.5}
    assert notes(described("llama-3.1-8b", changes), sequence=1) == []
