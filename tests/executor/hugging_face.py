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
        if f"l{i}.kv_down.w" in weights:
            found |= as_latent(weights, f"l{i}", f"{here}.self_attn", heads)
            found |= as_mlp(weights, f"l{i}", here, mixtral=False)
            continue
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
        found |= as_mlp(weights, f"l{i}", here, mixtral="l0.qnorm.w" not in weights)
    return {name: tensor.contiguous() for name, tensor in found.items()}


def as_mlp(weights: Mapping[str, Tensor], ours: str, here: str, *, mixtral: bool) -> Weights:
    """A layer's MLP, or its experts."""
    if f"{ours}.router.w" in weights:
        return as_experts(weights, ours, here, mixtral=mixtral)
    return as_gated(weights, f"{ours}.", f"{here}.mlp")


def as_gated(weights: Mapping[str, Tensor], ours: str, theirs: str) -> Weights:
    gate, up = weights[f"{ours}up.w"].T.chunk(2)
    found = {f"{theirs}.gate_proj.weight": gate, f"{theirs}.up_proj.weight": up}
    return {**found, f"{theirs}.down_proj.weight": weights[f"{ours}down.w"].T}


def as_latent(weights: Mapping[str, Tensor], ours: str, here: str, heads: int) -> Weights:
    """DeepSeek's attention: neighbours are turned, and each head's keys stand beside its values."""
    rank, found = len(weights[f"{ours}.kv_norm.w"]), {}
    down, up = weights[f"{ours}.kv_down.w"].T, weights[f"{ours}.kv_up.w"].T
    positions = len(down) - rank
    last = "q_proj"
    if f"{ours}.q_down.w" in weights:
        found[f"{here}.q_a_proj.weight"] = weights[f"{ours}.q_down.w"].T
        found[f"{here}.q_a_layernorm.weight"] = weights[f"{ours}.q_norm.w"]
        last = "q_b_proj"
    queries = []
    for head in weights[f"{ours}.q_up.w"].T.chunk(heads):
        plain = len(head) - positions
        queries += [head[:plain], neighbours(head[plain:])]
    keys, values = up[: heads * plain].chunk(heads), up[heads * plain :].chunk(heads)
    found[f"{here}.{last}.weight"] = cat(queries)
    found[f"{here}.kv_a_proj_with_mqa.weight"] = cat([down[:rank], neighbours(down[rank:])])
    found[f"{here}.kv_a_layernorm.weight"] = weights[f"{ours}.kv_norm.w"]
    pairs = [part for pair in zip(keys, values, strict=True) for part in pair]
    found[f"{here}.kv_b_proj.weight"] = cat(pairs)
    return {**found, f"{here}.o_proj.weight": weights[f"{ours}.out.w"].T}


def neighbours(rows: Tensor) -> Tensor:
    """Rows i and i + half beside one another."""
    return stack(rows.chunk(2), 1).flatten(0, 1)


def halves(rows: Tensor) -> Tensor:
    """The reverse of `neighbours`."""
    return cat([rows[0::2], rows[1::2]])


def from_latent(each: Mapping[str, Tensor], ours: str, heads: int) -> Weights:
    """The reference's latent attention of a checkpoint's layer."""
    rank, found = len(each["self_attn.kv_a_layernorm"]), {}
    down, up = each["self_attn.kv_a_proj_with_mqa"], each["self_attn.kv_b_proj"]
    positions = len(down) - rank
    last = "q_proj"
    if "self_attn.q_a_proj" in each:
        found[f"{ours}.q_down.w"] = each["self_attn.q_a_proj"].T
        found[f"{ours}.q_norm.w"] = each["self_attn.q_a_layernorm"]
        last = "q_b_proj"
    queries = []
    for head in each[f"self_attn.{last}"].chunk(heads):
        plain = len(head) - positions
        queries += [head[:plain], halves(head[plain:])]
    pairs = [head.tensor_split([plain]) for head in up.chunk(heads)]
    found[f"{ours}.q_up.w"] = cat(queries).T
    found[f"{ours}.kv_down.w"] = cat([down[:rank], halves(down[rank:])]).T
    found[f"{ours}.kv_norm.w"] = each["self_attn.kv_a_layernorm"]
    found[f"{ours}.kv_up.w"] = cat([cat(parts) for parts in zip(*pairs, strict=True)]).T
    return found


def as_experts(weights: Mapping[str, Tensor], ours: str, here: str, *, mixtral: bool) -> Weights:
    """A layer's router and experts, as Mixtral's checkpoints have them or as Qwen3-MoE's."""
    mlp = "block_sparse_moe" if mixtral else "mlp"
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    found = {f"{here}.{mlp}.gate.weight": weights[f"{ours}.router.w"].T}
    if f"{ours}.router.correction" in weights:
        bias = weights[f"{ours}.router.correction"]
        found[f"{here}.{mlp}.gate.e_score_correction_bias"] = bias
    downs = weights[f"{ours}.experts.down.w"]
    for number, both in enumerate(weights[f"{ours}.experts.up.w"]):
        gate, up = both.T.chunk(2)
        for name, tensor in zip(names, (gate, up, downs[number].T), strict=True):
            found[f"{here}.{mlp}.experts.{number}.{name}.weight"] = tensor
    if f"{ours}.shared.up.w" in weights:
        found |= as_gated(weights, f"{ours}.shared.", f"{here}.mlp.shared_experts")
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
    found = {
        f"{ours}.router.w": each[f"{mlp}.gate"].T,
        f"{ours}.experts.up.w": stack(both),
        f"{ours}.experts.down.w": stack(down),
    }
    if (bias := each.get(f"{mlp}.gate.e_score_correction_bias")) is not None:
        found[f"{ours}.router.correction"] = bias
    shared = "mlp.shared_experts."
    if f"{shared}up_proj" in each:
        parts = [each[f"{shared}{name}_proj"] for name in ("gate", "up")]
        found[f"{ours}.shared.up.w"] = cat(parts).T
        found[f"{ours}.shared.down.w"] = each[f"{shared}down_proj"].T
    return found


def from_llama(published: Mapping[str, Tensor], layers: int, heads: int) -> Weights:
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
        if "self_attn.kv_b_proj" in each:
            found |= from_latent(each, f"l{i}", heads)
        else:
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
