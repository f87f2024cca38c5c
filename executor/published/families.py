"""The families of published checkpoints: what their tensors are called, and whose they are.

GPT-2's linears lie as (in, out), as a program's do (`Conv1D`), and queries, keys and values side by
side in one of them; Llama's lie as (out, in), each alone. Both order queries, keys and values by
heads, and Llama's checkpoints turn element i of a head with element i + width/2, as `rope` does: so
no element changes its place within a head. Qwen2's and Qwen3's are Llama's with biases of queries,
keys and values, and with norms of queries and keys. Mixtral's are Llama's, and Qwen3-MoE's are
Qwen3's, with a router and experts in place of the MLP, each expert's tensors alone.
Source: transformers 5.23, modeling_gpt2.py, modeling_llama.py, modeling_qwen2.py,
modeling_qwen3.py, modeling_mixtral.py, modeling_qwen3_moe.py, modeling_deepseek_v2.py,
modeling_deepseek_v3.py, and conversion_mapping.py for the names that experts are saved under.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from executor.errors import WeightsError
from executor.published.latent import NORM_EPS
from topologies.records import record
from workload.gpt import GPT
from workload.model.experts import SIGMOID, SOFTMAX_OF_CHOSEN
from workload.model.fields import KEYS


@record
class ExpertNames:
    """What a layer's router and the linears of one expert are called, and how those of the MLP
    begin that all tokens pass. `bias` is what is added to scores where experts are chosen."""

    router: str
    expert: str
    linears: Mapping[str, tuple[str, ...]]
    shared: str = ""
    bias: str = ""


@record
class Family:
    """A family's names. `model` has those outside the layers, by a program's names, `layer` begins
    those of a layer, `linears`, `norms` and `head_norms` have them, a linear's bands one by one
    where they lie apart. `without_use` are tensors that some files hold beside the parameters.
    """

    name: str
    prefix: str
    model: Mapping[str, str]
    layer: str
    norms: Mapping[str, str]
    head_norms: Mapping[str, str]
    linears: Mapping[str, tuple[str, ...]]
    transposed: bool
    without_use: re.Pattern[str]
    experts: ExpertNames | None = None


GPT2 = Family(
    name="gpt2",
    prefix="transformer.",
    model={"embed.w": "wte", "position.w": "wpe", "norm": "ln_f"},
    layer="h.{}.",
    norms={"norm1": "ln_1", "norm2": "ln_2"},
    head_norms={},
    linears={
        "qkv": ("attn.c_attn",),
        "out": ("attn.c_proj",),
        "up": ("mlp.c_fc",),
        "down": ("mlp.c_proj",),
    },
    transposed=False,
    without_use=re.compile(r"h\.\d+\.attn\.(?:masked_)?bias"),  # the causal mask
)
LLAMA = Family(
    name="llama",
    prefix="model.",
    model={"embed.w": "embed_tokens", "norm": "norm"},
    layer="layers.{}.",
    norms={"norm1": "input_layernorm", "norm2": "post_attention_layernorm"},
    head_norms={},
    linears={
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.o_proj",),
        "up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    },
    transposed=True,
    without_use=re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)
QWEN2 = replace(LLAMA, name="qwen2")
QWEN3 = replace(
    LLAMA,
    name="qwen3",
    head_norms={"qnorm": "self_attn.q_norm", "knorm": "self_attn.k_norm"},
)
MIXTRAL = replace(
    LLAMA,
    name="mixtral",
    experts=ExpertNames(
        router="block_sparse_moe.gate",
        expert="block_sparse_moe.experts.{}.",
        linears={"up": ("w1", "w3"), "down": ("w2",)},
    ),
)
QWEN3_MOE = replace(
    QWEN3,
    name="qwen3_moe",
    experts=ExpertNames(
        router="mlp.gate",
        expert="mlp.experts.{}.",
        linears={"up": ("gate_proj", "up_proj"), "down": ("down_proj",)},
    ),
)
_GATED = {"up": ("gate_proj", "up_proj"), "down": ("down_proj",)}
DEEPSEEK_V2 = replace(
    LLAMA,
    name="deepseek_v2",
    experts=ExpertNames("mlp.gate", "mlp.experts.{}.", _GATED, shared="mlp.shared_experts."),
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    name="deepseek_v3",
    without_use=re.compile(r"layers\.61\..*"),  # the module that predicts a second token
    experts=ExpertNames(
        "mlp.gate",
        "mlp.experts.{}.",
        _GATED,
        shared="mlp.shared_experts.",
        bias="e_score_correction_bias",
    ),
)
# Fields of models with experts whose parameters are not converted.
UNPUBLISHED: dict[str, object] = {"biases": False, "sinks": False, "mtp_layers": 0}
HEAD = "lm_head.weight"  # of all families, and without their prefix
# Fields of attention with a place in checkpoints of some family, or of which no parameter is.
ATTENTION = (
    *("heads", "kv_heads", "head_width", "qkv_bias", "qk_norm", "rope_base", "rope_scaling"),
    *("window", "global_every", "sinks"),
)


def family_of(gpt: GPT) -> Family:
    """The family whose checkpoints hold a model's parameters; a WeightsError if none does."""
    if gpt.pattern:
        raise WeightsError(
            f"{gpt.name}: published weights of models with a pattern of layers are not known"
        )
    for key, each in KEYS.items():
        if each.part == "attention" and key not in ATTENTION and gpt.is_given(key):
            raise WeightsError(
                f"{gpt.name}: published weights of models with {key} are not read or written"
            )
    if gpt.latent.kv_rank:
        return _of_latent(gpt)
    if gpt.moe.experts:
        return _of_experts(gpt)
    shape = gpt.norm, gpt.activation, gpt.positions
    plain = not (gpt.embedding_norm or gpt.attention.sinks or gpt.mtp.layers)
    if plain and shape == ("rmsnorm", "swiglu", "rope"):
        if gpt.attention.qk_norm and not (gpt.biases or gpt.attention.qkv_bias):
            return QWEN3
        if not gpt.attention.qk_norm:
            return QWEN2 if gpt.attention.qkv_bias else LLAMA
    square = gpt.bands == (gpt.hidden,) * 3
    if plain and square and shape == ("layernorm", "gelu", "learned") and gpt.biases:
        return GPT2
    raise WeightsError(
        f"{gpt.name}: published weights are read and written of GPT-2's, Llama's and Qwen's "
        f"families; this model has {gpt.norm}, {gpt.activation} and {gpt.positions} positions"
        f"{'' if gpt.has_bias('qkv') else ', no biases'}"
        f"{', norms of queries and keys' if gpt.attention.qk_norm else ''}"
        f"{' and a norm of the embedding' if gpt.embedding_norm else ''}"
        f"{' and sinks' if gpt.attention.sinks else ''}"
        f"{' and a module that predicts a second token' if gpt.mtp.layers else ''}"
    )


def _of_latent(gpt: GPT) -> Family:
    """The family of a model with latent attention, of which it differs in nothing."""
    usual: dict[str, object] = {"norm": "rmsnorm", "activation": "swiglu", "expert_every": 1}
    usual |= {"embedding_norm": False, "norm_eps": NORM_EPS}
    others = [key for key, value in (usual | UNPUBLISHED).items() if gpt.value(key) != value]
    others += [] if gpt.moe.experts else ["experts"]
    others += (
        [] if gpt.moe.shared_ffn and not gpt.moe.shared_ffn % gpt.moe.expert_ffn else ["shared_ffn"]
    )
    others += ["router"] if gpt.moe.router == SOFTMAX_OF_CHOSEN else []
    if not others:
        return DEEPSEEK_V3 if gpt.moe.router == SIGMOID else DEEPSEEK_V2
    raise WeightsError(
        f"{gpt.name}: published weights with latent attention are read and written as DeepSeek-V2 "
        f"and V3 have them; {others[0]}={gpt.value(others[0])} has no place in those"
    )


def _of_experts(gpt: GPT) -> Family:
    """The family of a model with experts, of which it differs in nothing."""
    usual: dict[str, object] = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rope"}
    usual |= {"embedding_norm": False, "qkv_bias": False, "shared_ffn": 0, "router_scale": 1.0}
    usual |= {"router_groups": 0, "router_bias": False}
    if not gpt.attention.qk_norm:  # Mixtral's scores sum to one, and all its layers have experts
        usual |= {"router": SOFTMAX_OF_CHOSEN, "dense_layers": 0, "expert_every": 1}
    others = [key for key, value in (usual | UNPUBLISHED).items() if gpt.value(key) != value]
    if not others and gpt.moe.router != SIGMOID:
        return QWEN3_MOE if gpt.attention.qk_norm else MIXTRAL
    key, like = (others or ["router"])[0], "Qwen3-MoE" if gpt.attention.qk_norm else "Mixtral"
    raise WeightsError(
        f"{gpt.name}: published weights of models with experts are read and written as Mixtral and "
        f"Qwen3-MoE have them; {key}={gpt.value(key)} has no place in those of {like}"
    )
