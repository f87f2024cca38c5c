"""What the tensors of a published checkpoint are called, and how a program's parameters lie in
them.

GPT-2's linears lie as (in, out), as a program's do (`Conv1D`), and queries, keys and values side by
side in one of them; Llama's lie as (out, in), each alone. Both order queries, keys and values by
heads, and Llama's checkpoints turn element i of a head with element i + width/2, as `rope` does: so
no element changes its place within a head. Qwen2's and Qwen3's are Llama's with biases of queries,
keys and values, and with norms of queries and keys.
Source: transformers 5.23, modeling_gpt2.py, modeling_llama.py, modeling_qwen2.py and
modeling_qwen3.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from executor.errors import WeightsError
from workload.gpt import GPT

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
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
HEAD = "lm_head.weight"  # of all families, and without their prefix


@dataclass(frozen=True, slots=True)
class Published:
    """Where a parameter is published: names and shapes of the tensors that stand side by side in
    its last dimension, each turned if `transposed`. With `longer` a file's tensor may have more
    rows, of which the first are taken."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    transposed: bool = False
    longer: bool = False


def family_of(gpt: GPT) -> Family:
    """The family whose checkpoints hold a model's parameters; a WeightsError if none does."""
    if gpt.kv_rank:
        raise WeightsError(
            f"{gpt.name}: published weights of latent attention (kv_rank={gpt.kv_rank}) are "
            "neither read nor written"
        )
    shape = gpt.norm, gpt.activation, gpt.positions
    plain = not (gpt.embedding_norm or gpt.sinks)
    if plain and shape == ("rmsnorm", "swiglu", "rope"):
        if gpt.qk_norm and not (gpt.biases or gpt.qkv_bias):
            return QWEN3
        if not gpt.qk_norm:
            return QWEN2 if gpt.qkv_bias else LLAMA
    square = gpt.bands == (gpt.hidden,) * 3
    if plain and square and shape == ("layernorm", "gelu", "learned") and gpt.biases:
        return GPT2
    raise WeightsError(
        f"{gpt.name}: published weights are read and written of GPT-2's, Llama's and Qwen's "
        f"families; this model has {gpt.norm}, {gpt.activation} and {gpt.positions} positions"
        f"{'' if gpt.has_bias('qkv') else ', no biases'}"
        f"{', norms of queries and keys' if gpt.qk_norm else ''}"
        f"{' and a norm of the embedding' if gpt.embedding_norm else ''}"
        f"{' and sinks' if gpt.sinks else ''}"
    )


def published(gpt: GPT) -> dict[str, Published]:
    """Where each parameter of a model is published, by its name in a program."""
    family = family_of(gpt)
    found = dict(_ends(gpt, family))
    for i in range(gpt.layers):
        found |= _layer(gpt, family, i)
    return found


def _ends(gpt: GPT, family: Family) -> Iterator[tuple[str, Published]]:
    """What stands before and behind the layers."""
    model = {key: family.prefix + name for key, name in family.model.items()}
    yield "embed.w", Published((f"{model['embed.w']}.weight",), ((gpt.vocab, gpt.hidden),))
    if gpt.positions == "learned":
        table = ((gpt.sequence, gpt.hidden),)
        yield "position.w", Published((f"{model['position.w']}.weight",), table, longer=True)
    yield from _norm(gpt, "norm", model["norm"])
    if not gpt.tied:
        yield "head.w", Published((HEAD,), ((gpt.vocab, gpt.hidden),))


def _norm(gpt: GPT, ours: str, theirs: str) -> Iterator[tuple[str, Published]]:
    yield f"{ours}.w", Published((f"{theirs}.weight",), ((gpt.hidden,),))
    if gpt.norm_has_bias:
        yield f"{ours}.b", Published((f"{theirs}.bias",), ((gpt.hidden,),))


def _layer(gpt: GPT, family: Family, index: int) -> Iterator[tuple[str, Published]]:
    ours, theirs = f"l{index}.", family.prefix + family.layer.format(index)
    for key, name in family.norms.items():
        yield from _norm(gpt, ours + key, theirs + name)
    for key, name in family.head_norms.items():
        yield f"{ours}{key}.w", Published((f"{theirs}{name}.weight",), ((gpt.width,),))
    for key, (rows, bands) in _widths(gpt).items():
        names = [theirs + name for name in family.linears[key]]
        widths = bands if len(names) > 1 else (sum(bands),)
        shapes = tuple((n, rows) if family.transposed else (rows, n) for n in widths)
        weights = tuple(f"{name}.weight" for name in names)
        yield f"{ours}{key}.w", Published(weights, shapes, family.transposed)
        if gpt.has_bias(key):
            biases = tuple(f"{name}.bias" for name in names)
            yield f"{ours}{key}.b", Published(biases, tuple((n,) for n in widths))


def _widths(gpt: GPT) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Each linear's input width, and the widths side by side of its output."""
    return {
        "qkv": (gpt.hidden, gpt.bands),
        "out": (gpt.bands[0], (gpt.hidden,)),
        "up": (gpt.hidden, gpt.up_bands),
        "down": (gpt.ffn, (gpt.hidden,)),
    }
