"""The plain reference's weights under Hugging Face's names, written out by hand, and back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, cat, stack

Weights = dict[str, Tensor]

GPT2_LAYER = {
    "norm1": "ln_1",
    "qkv": "attn.c_attn",
    "out": "attn.c_proj",
    "norm2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
GPT2_ENDS = {
    "embed.w": "transformer.wte.weight",
    "position.w": "transformer.wpe.weight",
    "norm.w": "transformer.ln_f.weight",
    "norm.b": "transformer.ln_f.bias",
    "head.w": "lm_head.weight",
}


def as_gpt2(weights: Mapping[str, Tensor]) -> Weights:
    """GPT-2's checkpoint: `Conv1D` lies as the reference's linears do."""
    found = {}
    for name, tensor in weights.items():
        if name in GPT2_ENDS:
            found[GPT2_ENDS[name]] = tensor
            continue
        layer, part, kind = name.split(".")
        last = {"w": "weight", "b": "bias"}[kind]
        found[f"transformer.h.{layer[1:]}.{GPT2_LAYER[part]}.{last}"] = tensor
    return {name: tensor.contiguous() for name, tensor in found.items()}


def from_gpt2(published: Mapping[str, Tensor], layers: int) -> Weights:
    """The reference's weights of a checkpoint."""
    ends = {ours: published[theirs] for ours, theirs in GPT2_ENDS.items() if theirs in published}
    for i in range(layers):
        for ours, theirs in GPT2_LAYER.items():
            ends[f"l{i}.{ours}.w"] = published[f"transformer.h.{i}.{theirs}.weight"]
            ends[f"l{i}.{ours}.b"] = published[f"transformer.h.{i}.{theirs}.bias"]
    return ends


def as_llama(weights: Mapping[str, Tensor], layers: int, width: int, heads: int) -> Weights:
    """Llama's checkpoint: linears lie as (out, in), queries, keys and values apart."""
    found = {
        "model.embed_tokens.weight": weights["embed.w"],
        "model.norm.weight": weights["norm.w"],
    }
    if "head.w" in weights:
        found["lm_head.weight"] = weights["head.w"]
    for i in range(layers):
        here = f"model.layers.{i}"
        found[f"{here}.input_layernorm.weight"] = weights[f"l{i}.norm1.w"]
        found[f"{here}.post_attention_layernorm.weight"] = weights[f"l{i}.norm2.w"]
        qkv = weights[f"l{i}.qkv.w"].T
        first = heads * width
        groups = (len(qkv) - first) // 2
        found[f"{here}.self_attn.q_proj.weight"] = qkv[:first]
        found[f"{here}.self_attn.k_proj.weight"] = qkv[first : first + groups]
        found[f"{here}.self_attn.v_proj.weight"] = qkv[first + groups :]
        if f"l{i}.qkv.b" in weights:
            bias, ends = weights[f"l{i}.qkv.b"], (first, first + groups)
            for n, part in zip("qkv", bias.tensor_split(ends), strict=True):
                found[f"{here}.self_attn.{n}_proj.bias"] = part
        for n in "qk":
            if f"l{i}.{n}norm.w" in weights:
                found[f"{here}.self_attn.{n}_norm.weight"] = weights[f"l{i}.{n}norm.w"]
        found[f"{here}.self_attn.o_proj.weight"] = weights[f"l{i}.out.w"].T
        if f"l{i}.router.w" in weights:
            found |= as_experts(weights, f"l{i}", here, mixtral="l0.qnorm.w" not in weights)
            continue
        gate, up = weights[f"l{i}.up.w"].T.chunk(2)
        found[f"{here}.mlp.gate_proj.weight"] = gate
        found[f"{here}.mlp.up_proj.weight"] = up
        found[f"{here}.mlp.down_proj.weight"] = weights[f"l{i}.down.w"].T
    return {name: tensor.contiguous() for name, tensor in found.items()}


def as_experts(weights: Mapping[str, Tensor], ours: str, here: str, *, mixtral: bool) -> Weights:
    """A layer's router and experts, as Mixtral's checkpoints have them or as Qwen3-MoE's."""
    mlp = "block_sparse_moe" if mixtral else "mlp"
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    found = {f"{here}.{mlp}.gate.weight": weights[f"{ours}.router.w"].T}
    downs = weights[f"{ours}.experts.down.w"]
    for number, both in enumerate(weights[f"{ours}.experts.up.w"]):
        gate, up = both.T.chunk(2)
        for name, tensor in zip(names, (gate, up, downs[number].T), strict=True):
            found[f"{here}.{mlp}.experts.{number}.{name}.weight"] = tensor
    return found


def from_experts(each: Mapping[str, Tensor], ours: str) -> Weights:
    """A layer's router and experts of a checkpoint, by names without those of the layer."""
    mlp = "block_sparse_moe" if "block_sparse_moe.gate" in each else "mlp"
    names = ("w1", "w3", "w2") if mlp != "mlp" else ("gate_proj", "up_proj", "down_proj")
    experts = len(each[f"{mlp}.gate"])
    gate, up, down = (
        [each[f"{mlp}.experts.{number}.{name}"].T for number in range(experts)] for name in names
    )
    both = [cat(pair, 1) for pair in zip(gate, up, strict=True)]
    return {
        f"{ours}.router.w": each[f"{mlp}.gate"].T,
        f"{ours}.experts.up.w": stack(both),
        f"{ours}.experts.down.w": stack(down),
    }


def from_llama(published: Mapping[str, Tensor], layers: int) -> Weights:
    """The reference's weights of a checkpoint."""
    found = {
        "embed.w": published["model.embed_tokens.weight"],
        "norm.w": published["model.norm.weight"],
    }
    if "lm_head.weight" in published:
        found["head.w"] = published["lm_head.weight"]
    for i in range(layers):
        each = {
            name.removeprefix(f"model.layers.{i}.").removesuffix(".weight"): tensor
            for name, tensor in published.items()
        }
        found[f"l{i}.norm1.w"] = each["input_layernorm"]
        found[f"l{i}.norm2.w"] = each["post_attention_layernorm"]
        found[f"l{i}.qkv.w"] = cat([each[f"self_attn.{n}_proj"] for n in "qkv"]).T
        if "self_attn.q_proj.bias" in each:
            found[f"l{i}.qkv.b"] = cat([each[f"self_attn.{n}_proj.bias"] for n in "qkv"])
        if "self_attn.q_norm" in each:
            found |= {f"l{i}.{n}norm.w": each[f"self_attn.{n}_norm"] for n in "qk"}
        found[f"l{i}.out.w"] = each["self_attn.o_proj"].T
        if {"mlp.gate", "block_sparse_moe.gate"} & each.keys():
            found |= from_experts(each, f"l{i}")
            continue
        found[f"l{i}.up.w"] = cat([each["mlp.gate_proj"], each["mlp.up_proj"]]).T
        found[f"l{i}.down.w"] = each["mlp.down_proj"].T
    return found
