"""The `config.json` beside published weights: read, it must describe what the program computes;
written, it is what transformers loads an exported model by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from executor.errors import WeightsError
from executor.published.families import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GPT2,
    MIXTRAL,
    QWEN3_MOE,
    Family,
    family_of,
)
from executor.published.latent import NORM_EPS
from topologies.files.printable import path_shown, shown
from topologies.files.reading import UserFile
from workload.descriptions.described import BEYOND, Described
from workload.descriptions.hugging_face import is_config, model_from_config
from workload.gpt import GPT
from workload.model.experts import SOFTMAX_OF_CHOSEN
from workload.models.moe import has_experts, layers_with_experts
from workload.models.rope_scaling import NUMBERS, rope_type, scaling_of, spelled_out
from workload.models.windows import has_windows

CONFIG = "config.json"
CONFIG_FILE = UserFile("config", WeightsError)
Document = dict[str, Any]
# What a config must say of the function, since the program computes it in one way: the values, and
# the one that transformers takes where a key is absent.
COMPUTED: Mapping[str, Mapping[str, tuple[tuple[Any, ...], Any]]] = {
    "gpt2": {
        "activation_function": (("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_new"),
        "scale_attn_weights": ((True,), True),
        "scale_attn_by_inverse_layer_idx": ((False,), False),
    },
    # A loss that balances experts is added where the router's logits are given out.
    "mixtral": {
        "output_router_logits": ((False,), False),
        "router_jitter_noise": ((0, None), 0),
    },
    "qwen3_moe": {"output_router_logits": ((False,), False)},
    "deepseek_v2": {
        "rms_norm_eps": ((NORM_EPS,), NORM_EPS),
        "topk_method": (("greedy", "group_limited_greedy"), "greedy"),
        "norm_topk_prob": ((False,), False),
        "scoring_func": (("softmax",), "softmax"),
        "output_router_logits": ((False,), False),
    },
    "deepseek_v3": {
        "rms_norm_eps": ((NORM_EPS,), NORM_EPS),
        "norm_topk_prob": ((True,), True),
        "scoring_func": (("sigmoid",), "sigmoid"),
        "rope_interleave": ((True,), True),
        "output_router_logits": ((False,), False),
    },
}
CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
READ_AS_LLAMA = ("mistral",)  # and never written
OF_EXPERTS = ["experts", "topk", "expert_ffn", "shared_ffn", "dense_layers", "expert_every"]
OF_EXPERTS += ["router", "router_scale", "router_groups", "router_topk_groups"]
OF_LATENT = ["q_rank", "kv_rank", "rope_width"]
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16"}


def config_beside(folder: Path) -> Document | None:
    """The config in a folder; None where there is no such file."""
    path = folder / CONFIG
    if not path.exists():
        return None
    document = CONFIG_FILE.document(path)
    if not is_config(document):
        raise WeightsError(f"{path_shown(path)} is not a config of Hugging Face: it names no model")
    return dict(document)


def check_config(document: Document, gpt: GPT, folder: Path) -> None:
    """Refuse weights whose config describes another function than the model's program computes.

    The sequence may be another: a table of learned positions is cut, and RoPE has none.
    """
    origin = path_shown(folder / CONFIG)
    described = model_from_config(document, origin, name="")
    family = described.gpt.source.rpartition(" ")[2]
    if family not in CLASSES and family not in READ_AS_LLAMA:
        raise WeightsError(f"{origin}: weights of the family {family} are not read")
    for what in [each for each in described.beyond if each != "rope"]:
        raise WeightsError(f"{origin}: the model has {BEYOND[what]}, which simgpt does not train")
    for name, theirs, ours in _fields(described.gpt, gpt):
        if theirs != ours:
            raise WeightsError(
                f"{origin} has {name}={theirs}, but {gpt.name} has {name}={ours}; MODEL may be the "
                "config.json itself"
            )
    _check_computed(document, described, origin)
    if "rope" in described.beyond:
        raise WeightsError(f"{origin}: the model has {BEYOND['rope']}, which simgpt does not train")
    for note in described.notes:
        if note.above and gpt.sequence > note.above:
            raise WeightsError(
                f"{origin}: the attention's window of {note.above} tokens is not trained; give "
                f"--model-set sequence={note.above} or less"
            )


def _fields(theirs: GPT, ours: GPT) -> Iterator[tuple[str, Any, Any]]:
    """The fields that weights depend on, of both models."""
    names = ["layers", "hidden", "heads", "vocab", "tied"]
    names += ["ffn"] if layers_with_experts(ours) < ours.layers else []
    names += OF_EXPERTS + OF_LATENT
    names += ["norm", "activation", "positions", "biases", "qkv_bias", "qk_norm", "norm_eps"]
    windows = any(has_windows(replace(gpt, sequence=ours.sequence)) for gpt in (theirs, ours))
    names += ["window", "global_every"] if windows else []
    names += ["rope_base"] if ours.positions == "rope" else []
    for name in names:
        yield name, theirs.value(name), ours.value(name)
    yield "kv_heads", theirs.key_heads, ours.key_heads
    yield "head_width", theirs.width, ours.width
    yield "context_width", theirs.context_width, ours.context_width
    if ours.positions == "rope":
        yield (
            "rope_scaling",
            spelled_out(theirs.attention.rope_scaling),
            spelled_out(ours.attention.rope_scaling),
        )


def _check_computed(document: Document, described: Described, origin: str) -> None:
    family = described.gpt.source.rpartition(" ")[2]
    for key, (allowed, absent) in COMPUTED.get(family, {}).items():
        value = document.get(key, absent)
        if value not in allowed:
            raise WeightsError(
                f"{origin}: {key} = {shown(value)} is not what simgpt computes, {allowed[0]} is"
            )
    for key in ("rope_scaling", "rope_parameters"):
        rope = document.get(key)
        partial = isinstance(rope, dict) and rope.get("partial_rotary_factor", 1) != 1
        if rope_type(rope) not in ("", "default", *NUMBERS) or partial:
            known = ", ".join(NUMBERS)
            raise WeightsError(
                f"{origin}: {key} = {shown(rope)} is not computed: RoPE is plain or of type {known}"
            )


def config_of(gpt: GPT, precision: str, source: Document | None) -> Document:
    """The config of a model's exported weights: that of the weights it started from, `source`, with
    what a run may change; without one, all that the model says."""
    family = family_of(gpt)
    if source is None and has_windows(gpt):
        raise WeightsError(
            f"{gpt.name}: a config.json of window={gpt.attention.window} is written only for "
            "weights that came with one"
        )
    own = _gpt2(gpt) if family == GPT2 else _llama(gpt) | _experts(gpt, family)
    if source is None:
        own = {**_named(family), **own, "bos_token_id": None, "eos_token_id": None}
    else:
        # transformers 4 looks for RoPE's base at the top alone.
        changed = ("n_positions", *DROPOUTS) if family == GPT2 else ("rope_theta", "rope_scaling")
        own = {**source, **{key: own[key] for key in changed}}
        for key in ("dtype", *(["max_position_embeddings"] if family == GPT2 else [])):
            own.pop(key, None)
    return {**own, "torch_dtype": _DTYPES[precision]}


def _named(family: Family) -> Document:
    return {"architectures": [CLASSES[family.name]], "model_type": family.name}


def _gpt2(gpt: GPT) -> Document:
    return {
        "n_layer": gpt.layers,
        "n_embd": gpt.hidden,
        "n_head": gpt.attention.heads,
        "n_inner": gpt.ffn,
        "n_positions": gpt.sequence,
        "vocab_size": gpt.vocab,
        "tie_word_embeddings": gpt.tied,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": gpt.norm_eps,
        **dict.fromkeys(DROPOUTS, gpt.dropout),
    }


def _llama(gpt: GPT) -> Document:
    """The config of Llama's family and of those that are like it."""
    scaling = scaling_of(gpt.attention.rope_scaling)
    return {
        "num_hidden_layers": gpt.layers,
        "hidden_size": gpt.hidden,
        "num_attention_heads": gpt.attention.heads,
        "num_key_value_heads": gpt.key_heads,
        "head_dim": gpt.width,
        "intermediate_size": gpt.ffn,
        "max_position_embeddings": gpt.sequence,
        "vocab_size": gpt.vocab,
        "tie_word_embeddings": gpt.tied,
        "rope_theta": gpt.attention.rope_base,
        "rope_scaling": None if scaling is None else scaling.as_config(),
        "hidden_act": "silu",
        "rms_norm_eps": gpt.norm_eps,
        **({} if gpt.attention.qkv_bias or gpt.moe.experts else {"attention_bias": gpt.biases}),
        **(
            {}
            if gpt.attention.qkv_bias or gpt.attention.qk_norm or gpt.moe.experts
            else {"mlp_bias": gpt.biases}
        ),
    }


def _experts(gpt: GPT, family: Family) -> Document:
    """What the config of a model with experts has more, or otherwise."""
    if family == MIXTRAL:
        return {
            "intermediate_size": gpt.moe.expert_ffn,
            "num_local_experts": gpt.moe.experts,
            "num_experts_per_tok": gpt.moe.topk,
            "sliding_window": None,
        }
    if family == QWEN3_MOE:
        return {
            "moe_intermediate_size": gpt.moe.expert_ffn,
            "num_experts": gpt.moe.experts,
            "num_experts_per_tok": gpt.moe.topk,
            "norm_topk_prob": gpt.moe.router == SOFTMAX_OF_CHOSEN,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [n for n in range(gpt.layers) if not has_experts(gpt, n)],
        }
    return _deepseek(gpt, family) if family in (DEEPSEEK_V2, DEEPSEEK_V3) else {}


def _deepseek(gpt: GPT, family: Family) -> Document:
    method = "group_limited_greedy" if gpt.moe.router_groups else "greedy"
    own = {"topk_method": method} if family == DEEPSEEK_V2 else {"rope_interleave": True}
    plain = gpt.width - gpt.latent.rope_width
    return own | {
        "head_dim": gpt.latent.rope_width,
        "q_lora_rank": gpt.latent.q_rank or None,
        "kv_lora_rank": gpt.latent.kv_rank,
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": gpt.latent.rope_width,
        "v_head_dim": gpt.latent.value_width or plain,
        "n_routed_experts": gpt.moe.experts,
        "num_experts_per_tok": gpt.moe.topk,
        "n_shared_experts": gpt.moe.shared_ffn // gpt.moe.expert_ffn,
        "moe_intermediate_size": gpt.moe.expert_ffn,
        "first_k_dense_replace": gpt.moe.dense_layers,
        "routed_scaling_factor": gpt.moe.router_scale,
        "norm_topk_prob": family == DEEPSEEK_V3,
        "n_group": gpt.moe.router_groups or 1,
        "topk_group": gpt.moe.router_topk_groups or 1,
    }
