"""Which family's a config is: what stands one level down, constants of Python's JSON, and presets
that are named where a family is not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.messages import assert_names, names
from workload.descriptions.described import Described
from workload.descriptions.read import described_model
from workload.errors import ModelError
from workload.gpt import find_model

LANGUAGE = {
    "model_type": "mistral",
    "hidden_size": 5120,
    "intermediate_size": 32768,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "sliding_window": None,
    "vocab_size": 131072,
}


def described(config: dict[str, Any], folder: Path) -> Described:
    """The model of a config."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return described_model(str(path))


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_language_model_of_several_senses_is_read(key: str, tmp_path: Path) -> None:
    """Of Mistral Small 3.1: 40 x (5120 x (4096 + 2 x 1024) + 4096 x 5120 + 3 x 5120 x 32768 + 2 x
    5120) + 2 x 131072 x 5120 + 5120 parameters."""
    config = {"model_type": "mistral3", "tie_word_embeddings": False, key: LANGUAGE}
    found = described({**config, "vision_config": {"hidden_size": 1024}}, tmp_path)
    assert found.gpt.parameters == 23_572_403_200
    assert "vision_config" in found.notes[0].text


def test_what_stands_one_level_down_is_named_where_it_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, check=names("config.json", "text_config", "qwen3_5_text")):
        described(
            {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}, tmp_path
        )


def test_a_language_model_two_levels_down_is_read_and_all_others_are_named(tmp_path: Path) -> None:
    """As in Qwen2.5-Omni, whose thinker sees and hears."""
    text = {key: value for key, value in LANGUAGE.items() if key != "sliding_window"}
    thinker = {"model_type": "x_thinker", "text_config": text, "audio_config": {"d_model": 8}}
    config = {"model_type": "x", "thinker_config": thinker, "talker_config": {"hidden_size": 8}}
    found = described({**config, "quantization_config": {"bits": 4}}, tmp_path)
    assert found.gpt.parameters == 23_572_403_200
    assert_names(found.notes[0].text, "talker_config", "audio_config")


def test_a_config_whose_top_says_nothing_of_a_family_is_one(tmp_path: Path) -> None:
    assert described({"text_config": LANGUAGE}, tmp_path).gpt.parameters == 23_572_403_200


def test_a_language_model_without_a_family_has_that_of_the_whole(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 2, "hidden_size": 256, "head_dim": 64, "vocab_size": 512}
    config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {}}
    assert described(config, tmp_path).gpt.attention.qk_norm


def test_fields_at_the_top_beside_a_vision_model_are_read(tmp_path: Path) -> None:
    """As in the first files of Qwen2-VL."""
    own = {key: value for key, value in LANGUAGE.items() if key not in ("model_type", "head_dim")}
    found = described({"model_type": "qwen2_vl", **own, "vision_config": {"depth": 32}}, tmp_path)
    assert found.gpt.attention.qkv_bias
    assert_names(found.notes[0].text, "vision_config")


@pytest.mark.parametrize(
    ("family", "preset", "keys"),
    [
        ("bamba", "nemotron-h-8b", ("num_hidden_layers", "hidden_size", None)),
        ("deepseek_v32", "deepseek-v3", ("num_hidden_layers", "hidden_size", "num_experts")),
        ("nemotron-nas", "llama-3.1-70b", ("n_layers", "d_model", None)),
        ("mine", "mpt-30b", ("n_layers", "d_model", None)),
    ],
)
def test_the_preset_of_a_family_that_is_not_read_is_named(
    family: str, preset: str, keys: tuple[str, ...], tmp_path: Path
) -> None:
    gpt = find_model(preset)
    sizes = zip(keys, (gpt.layers, gpt.hidden, gpt.moe.experts), strict=True)
    config = {"model_type": family, "vocab_size": gpt.vocab}
    config |= {key: size for key, size in sizes if key}
    with pytest.raises(ModelError, check=names(preset)):
        described(config, tmp_path)


def test_kimi_k2_is_read_as_the_deepseek_v3_that_it_is(tmp_path: Path) -> None:
    config = {
        "model_type": "kimi_k2",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_group": 1,
        "topk_group": 1,
        "vocab_size": 163840,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
    }
    assert described(config, tmp_path).gpt.parameters == find_model("kimi-k2").parameters


ALTERNATING = ["sliding_attention", "full_attention"] * 12


@pytest.mark.parametrize("types", [ALTERNATING, None])
def test_gpt_oss_is_the_preset(types: list[str] | None, tmp_path: Path) -> None:
    own = {"num_hidden_layers": 24, "num_local_experts": 32, "router_aux_loss_coef": 0.9}
    config = {"model_type": "gpt_oss", "layer_types": types, "attention_bias": True, **own}
    gpt, preset = described(config, tmp_path).gpt, find_model("gpt-oss-20b")
    assert gpt.parameters == preset.parameters == 20_914_757_184
    keys = ["window", "global_every", "sinks", "activation", "biases", "topk", "router"]
    keys += ["balance_loss"]
    assert [gpt.value(key) for key in keys] == [preset.value(key) for key in keys]


def test_trinity_has_a_gate_and_as_many_parameters_as_its_card_says(tmp_path: Path) -> None:
    """arcee-ai/Trinity-Mini: 26 billion parameters, of which a token passes 3 billion."""
    sizes: dict[str, float] = {"num_attention_heads": 32, "num_key_value_heads": 4}
    sizes |= {"num_dense_layers": 2}
    sizes |= {"num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1}
    sizes |= {"moe_intermediate_size": 1024, "sliding_window": 2048, "route_scale": 2.826}
    found = described({"model_type": "afmoe", **sizes}, tmp_path)
    gpt = found.gpt
    assert gpt.attention.output_gate
    assert (gpt.attention.window, gpt.attention.global_every, gpt.moe.dense_layers) == (2048, 4, 2)
    # Attention: queries, gate and output 2048 x 4096 each, keys and values 2048 x 512 each; norms.
    attention = 2048 * (3 * 4096 + 2 * 512) + 2 * 128
    dense = 3 * 2048 * 6144
    experts = 3 * 2048 * 1024 * (128 + 1) + 2048 * 128 + 128
    layers = 32 * (attention + 2 * 2048) + 2 * dense + 30 * experts
    assert gpt.parameters == layers + 2 * 200192 * 2048 + 2048 == 26_123_843_328
    assert found.missing == 32 * 2 * 2048  # norms after attention and MLP


def test_layers_of_gpt_oss_at_no_equal_distance_are_refused(tmp_path: Path) -> None:
    types = ["full_attention", *ALTERNATING[1:]]
    config = {"model_type": "gpt_oss", "num_hidden_layers": 24, "layer_types": types}
    with pytest.raises(ModelError, match="layer_types"):
        described(config, tmp_path)
    whole = described({**config, "layer_types": ["full_attention"] * 24}, tmp_path).gpt
    assert (whole.attention.window, whole.attention.global_every) == (0, 0)
    none = described({**config, "layer_types": ["sliding_attention"] * 24}, tmp_path).gpt
    assert (none.attention.window, none.attention.global_every) == (128, 0)


@pytest.mark.parametrize(
    ("types", "every"), [("fsss" * 4, 4), ("sssf" * 4, 4), ("ssf" + "s" * 2, 3), ("fsss", 4)]
)
def test_windows_that_begin_elsewhere_are_as_many_and_that_is_said(
    types: str, every: int, tmp_path: Path
) -> None:
    words = {"f": "full_attention", "s": "sliding_attention"}
    config = {"model_type": "cwm", "num_hidden_layers": len(types), "sliding_window": 64}
    found = described({**config, "layer_types": [words[each] for each in types]}, tmp_path)
    assert (found.gpt.attention.window, found.gpt.attention.global_every) == (64, every)
    assert len(types) // every == types.count("f")
    said = any("layer_types" in note.text for note in found.notes)
    assert said == types.startswith("f")


def test_presets_of_a_family_are_named_where_none_has_the_sizes(tmp_path: Path) -> None:
    with pytest.raises(ModelError, check=names("grok-1")):
        described({"model_type": "grok", "num_hidden_layers": 99}, tmp_path)
    with pytest.raises(ModelError) as raised:
        described({"model_type": "rwkv", "num_hidden_layers": 99}, tmp_path)
    assert_names(str(raised.value), "rwkv", "RWKV")


def test_a_family_that_is_not_known_is_read_by_its_class_and_that_is_said(tmp_path: Path) -> None:
    config = {**LANGUAGE, "model_type": "our_own", "architectures": ["MistralForCausalLM"]}
    found = described(config, tmp_path)
    assert found.gpt.parameters == 23_572_403_200
    said = found.notes[0].text
    assert "our_own" in said
    assert "MistralForCausalLM" in said


def test_a_class_of_a_familys_next_generation_comes_before_the_familys_name(tmp_path: Path) -> None:
    """MiniMax-M2 has no lightning attention, which the family minimax has."""
    config = {"model_type": "minimax", "architectures": ["MiniMaxM2ForCausalLM"]}
    found, own = described(config, tmp_path), described({"model_type": "minimax_m2"}, tmp_path)
    assert found.gpt.parameters == own.gpt.parameters
    with pytest.raises(ModelError, check=names("minimax", "lightning")):
        described({**config, "architectures": ["MiniMaxForCausalLM"]}, tmp_path)


def test_a_class_that_contradicts_the_family_is_said(tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["MistralForCausalLM"]}
    assert any("MistralForCausalLM" in note.text for note in described(config, tmp_path).notes)
    config["architectures"] = ["LlamaForCausalLM"]
    assert not any("LlamaForCausalLM" in note.text for note in described(config, tmp_path).notes)


def test_constants_of_pythons_json_are_read_where_no_number_is_taken(tmp_path: Path) -> None:
    llama = {"model_type": "llama", "time_step_limit": [0.0, float("inf")], "x": float("nan")}
    assert described(llama, tmp_path).gpt.layers == 32
    with pytest.raises(ModelError, check=names("vocab_size", "Infinity")):
        described({"model_type": "llama", "vocab_size": float("inf")}, tmp_path)
    with pytest.raises(ModelError, check=names("rms_norm_eps", "NaN")):
        described({"model_type": "llama", "rms_norm_eps": float("nan")}, tmp_path)


HYBRID = {
    "model_type": "nemotron_h",
    "num_hidden_layers": 52,
    "hybrid_override_pattern": find_model("nemotron-h-8b").pattern,
    "time_step_limit": [0.0, float("inf")],
    "n_routed_experts": 8,  # of which no layer of the pattern is
}


def test_a_long_list_of_quantised_linears_rejects_no_file(tmp_path: Path) -> None:
    """As of MiniMax M3 in four bits, whose file has 3 MB."""
    names = [f"model.layers.{number}.mlp.experts.down_proj" for number in range(40_000)]
    config = {"model_type": "llama", "quantization_config": {"ignore": names}}
    assert described(config, tmp_path).gpt.layers == 32
    assert (tmp_path / "config.json").stat().st_size > 2**20


def test_nemotron_h_is_the_preset(tmp_path: Path) -> None:
    gpt, preset = described(HYBRID, tmp_path).gpt, find_model("nemotron-h-8b")
    assert gpt.parameters == preset.parameters == 8_100_852_736
    assert (gpt.pattern, gpt.positions) == (preset.pattern, "none")


def test_layers_of_a_hybrid_may_be_given_by_their_words(tmp_path: Path) -> None:
    words = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
    blocks = [words[letter] for letter in find_model("nemotron-h-8b").pattern]
    config = {"model_type": "nemotron_h", "layers_block_type": blocks}
    found = described(config, tmp_path)
    assert found.gpt.parameters == 8_100_852_736
    assert not any("layers_block_type" in note.text for note in found.notes)
    with pytest.raises(ModelError, check=names("layers_block_type", "x")):
        described({"model_type": "nemotron_h", "layers_block_type": ["x"] * 52}, tmp_path)


@pytest.mark.parametrize("name", ["nemotron-3-nano", "nemotron-3-super"])
def test_a_hybrid_with_experts_is_the_preset(name: str, tmp_path: Path) -> None:
    preset = find_model(name).changed(mtp_layers=0, mtp_pattern="", mtp_shared=False)
    config = {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": preset.pattern,
        "num_hidden_layers": preset.layers,
        "hidden_size": preset.hidden,
        "intermediate_size": preset.ffn,
        "num_attention_heads": preset.attention.heads,
        "num_key_value_heads": preset.key_heads,
        "head_dim": preset.width,
        "vocab_size": preset.vocab,
        "mamba_num_heads": preset.mamba2.heads,
        "mamba_head_dim": preset.mamba2.width,
        "ssm_state_size": preset.mamba2.state,
        "n_groups": preset.mamba2.groups,
        "n_routed_experts": preset.moe.experts,
        "num_experts_per_tok": preset.moe.topk,
        "moe_intermediate_size": preset.moe.expert_ffn,
        "moe_shared_expert_intermediate_size": preset.moe.shared_ffn,
        "moe_latent_size": preset.moe.expert_latent or None,
        "routed_scaling_factor": preset.moe.router_scale,
        "max_position_embeddings": preset.sequence,
    }
    found = described(config, tmp_path)
    own: dict[str, Any] = {"name": "x", "source": "x", "head_width": preset.width}
    assert found.gpt.changed(**own) == preset.changed(**own, balance_loss=0.0)
    assumed, sequence = found.notes  # and of nothing that is in the file
    assert_names(assumed.text, "tie_word_embeddings", "conv_kernel", "chunk_size")
    assert_names(sequence.text, "max_position_embeddings")
