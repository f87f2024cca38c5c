"""What the fields of a model may be: words, and the least and the most of each number."""

from __future__ import annotations

from workload.models import moe

GATED = ("swiglu", "clamped_swiglu")  # activations of gate and up side by side
CHOICES = {
    "norm": ("layernorm", "rmsnorm"),
    "activation": ("gelu", *GATED),
    "positions": ("learned", "rope", "alibi"),
    "router": moe.ROUTERS,
    "balance_over": moe.BALANCED,
}
MOST = {  # many times what any model has, so that what is counted of one stays within 64 bits
    "layers": 10_000,
    "hidden": 200_000,
    "heads": 10_000,
    "ffn": 1_000_000,
    "sequence": 10_000_000,
    "vocab": 10_000_000,
    "kv_heads": 10_000,
    "head_width": 10_000,
    "rope_base": 1_000_000_000_000,
    "goldfish_k": 1_000_000,
    "goldfish_h": 10_000,
    "experts": 100_000,
    "topk": 100_000,
    "expert_ffn": 1_000_000,
    "shared_ffn": 1_000_000,
    "dense_layers": 10_000,
    "expert_every": 10_000,
    "q_rank": 100_000,
    "kv_rank": 100_000,
    "rope_width": 10_000,
    "value_width": 10_000,
    "router_groups": 100_000,
    "router_topk_groups": 100_000,
    "mtp_layers": 10_000,
    "window": 10_000_000,
    "global_every": 10_000,
    "document": 10_000_000,
}
OF_ATTENTION = ("kv_heads", "head_width", "q_rank", "kv_rank", "rope_width", "value_width")
WINDOWS = ("window", "global_every", "document")
GROUPS = ("router_groups", "router_topk_groups")
OF_EXPERTS = ("experts", "topk", "expert_ffn", "shared_ffn", "dense_layers", *GROUPS)
COUNTS = (*OF_ATTENTION, *WINDOWS, *OF_EXPERTS, "mtp_layers")
WIDTHS = ("layers", "hidden", "heads", "ffn", "sequence", "vocab")
LEAST = {**dict.fromkeys(WIDTHS, 1), **dict.fromkeys(COUNTS, 0)}
