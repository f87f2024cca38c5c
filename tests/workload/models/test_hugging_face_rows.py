"""What a row of `families.toml` can say: activations, norms, windows, experts and their places."""

from __future__ import annotations

from typing import Any

import pytest

from tests.messages import assert_names, names
from workload.descriptions.configs import families
from workload.descriptions.described import Described
from workload.descriptions.hugging_face import model_from_config
from workload.errors import ModelError


def described(family: str, **config: Any) -> Described:
    return model_from_config({"model_type": family, **config}, "c.json", name="own")


def texts(found: Described) -> list[str]:
    return [note.text for note in found.notes]


def test_gemma_2_is_read_with_notes_of_what_is_not_modelled() -> None:
    """Gemma 2 9B: two further norms of each of 42 layers, 2 x 42 x 3,584 parameters."""
    found = described(
        "gemma2",
        hidden_size=3584,
        intermediate_size=14336,
        num_hidden_layers=42,
        num_attention_heads=16,
        num_key_value_heads=8,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )
    assert found.gpt.parameters == 9_241_404_928
    assert found.missing == 2 * 42 * 3584
    assert (found.gpt.attention.window, found.gpt.attention.global_every) == (4096, 2)
    assert (found.gpt.activation, found.gpt.tied) == ("swiglu", True)
    assert_names(" ".join(texts(found)), "301,056")
    assert_names(" ".join(texts(found)), "hidden_activation", "gelu_pytorch_tanh", "SiLU")
    assert_names(" ".join(texts(found)), "attn_logit_softcapping", "50.0")
    assert_names(" ".join(texts(found)), "final_logit_softcapping", "30.0")
    assert set(found.beyond) == {"parts", "activation", "scales"}


@pytest.mark.parametrize(
    ("family", "word", "activation", "is_said"),
    [
        ("llama", "silu", "swiglu", False),
        ("llama", "gelu", "swiglu", True),
        ("gpt_neox", "gelu", "gelu", False),
        ("gpt_neox", "relu", "gelu", True),
        ("gpt_neox", "relu2", "squared_relu", False),
        ("nemotron", "relu2", "squared_relu", False),
    ],
)
def test_an_activation_is_taken_as_the_nearest_one(
    family: str, word: str, activation: str, is_said: bool
) -> None:
    found = described(family, hidden_act=word)
    assert found.gpt.activation == activation
    assert any("SiLU" in text or "GELU" in text for text in texts(found)) == is_said
    assert ("activation" in found.beyond) == is_said


def test_multipliers_that_scale_nothing_are_silent() -> None:
    ones = described("granite", embedding_multiplier=1.0, residual_multiplier=1)
    assert not any("multiplier" in text for text in texts(ones))
    scaled = described("granite", embedding_multiplier=12.0)
    assert_names(" ".join(texts(scaled)), "embedding_multiplier", "12.0")


def test_a_list_with_one_number_for_all_layers_is_that_number() -> None:
    """As of Hunyuan-A13B."""
    sizes = {"num_hidden_layers": 4, "num_experts": 8, "head_dim": 128}
    one = described("hunyuan_v1_moe", **sizes, moe_topk=2, moe_intermediate_size=3072).gpt
    lists = described("hunyuan_v1_moe", **sizes, moe_topk=[2] * 4, moe_intermediate_size=[3072] * 4)
    assert lists.gpt == one
    with pytest.raises(ModelError, match="moe_topk"):
        described("hunyuan_v1_moe", **sizes, moe_topk=[2, 2, 2, 1], moe_intermediate_size=3072)


@pytest.mark.parametrize(
    "places",
    [
        {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"]},
        {"moe_layer_freq": [0, 0, 1, 1]},
        {"first_k_dense_replace": 2},
    ],
)
def test_places_of_experts_are_given_in_any_of_the_usual_ways(places: dict[str, Any]) -> None:
    found = described("glm4_moe", num_hidden_layers=4, head_dim=128, **places)
    assert (found.gpt.moe.dense_layers, found.gpt.moe.expert_every) == (2, 1)
    assert not any(key in text for key in places for text in texts(found))


def test_experts_of_every_other_layer_are_those_of_llama_4() -> None:
    maverick = described("llama4_text", interleave_moe_layer_step=2, num_local_experts=128)
    assert maverick.gpt.parameters == 400_711_848_960
    listed = described("llama4_text", moe_layers=list(range(1, 48, 2)), num_local_experts=128)
    assert listed.gpt == maverick.gpt


def test_layers_of_lightning_attention_are_told_from_usual_ones() -> None:
    """Of MiniMax' lists a 1 is usual attention, and a 0 the other one."""
    usual = described("minimax_m2", attn_type_list=[1] * 62)
    assert usual.gpt.parameters + usual.missing == 228_689_764_864
    with pytest.raises(ModelError, check=names("minimax_m2", "lightning")):
        described("minimax_m2", attn_type_list=[0, 1] * 31)


def test_sizes_that_a_row_says_are_equal_must_be() -> None:
    with pytest.raises(ModelError, check=names("word_embed_proj_dim", "512")):
        described("opt", hidden_size=1024, num_attention_heads=16, word_embed_proj_dim=512)


def test_cases_of_falcon_are_told_by_their_switches() -> None:
    """40B has heads of keys and two norms, RW-1B ALiBi and all biases."""
    new = {"hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60}
    new |= {"ffn_hidden_size": 32768, "num_kv_heads": 8, "new_decoder_architecture": True}
    large = described("falcon", **new)
    assert large.gpt.key_heads == 8
    assert large.missing == 60 * 2 * 8192 + 8192
    old = {"hidden_size": 2048, "num_attention_heads": 32, "ffn_hidden_size": 8192, "alibi": True}
    small = described("falcon", **old, bias=True, multi_query=False, parallel_attn=False)
    assert (small.gpt.positions, small.gpt.biases, small.missing) == ("alibi", True, 0)


def test_a_row_says_what_differs_from_the_one_it_is_like() -> None:
    base = {"fixed": {"norm": "a", "tied": True}, "keys": {"x": ["y"]}, "biases": {"k": "o"}}
    own = {"fixed": {"norm": "b", "tied": ""}, "biases": {}}
    found = families.joined(base, own)
    assert found == {"fixed": {"norm": "b"}, "keys": {"x": ["y"]}, "biases": {}}


@pytest.mark.parametrize("family", families.tables()["families"])
def test_every_row_can_be_read_or_names_the_key_that_it_needs(family: str) -> None:
    try:
        found = described(family)
    except ModelError as error:
        assert "c.json: " in str(error)  # a key of the config's
    else:
        assert found.gpt.parameters > 10**6
