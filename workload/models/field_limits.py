"""What the fields of a model may be: words, and the least and the most of each number."""

from __future__ import annotations

from workload.models import moe
from workload.models.hybrids.pattern import MOST_CONV
from workload.models.model_fields import GATED
from workload.models.mtp import MOST_DEPTHS

CHOICES = {
    "norm": ("layernorm", "rmsnorm"),
    "activation": ("gelu", "squared_relu", *GATED),
    "positions": ("learned", "rope", "alibi", "none"),
    "router": moe.ROUTERS,
    "balance_over": moe.BALANCED,
}
MOST = {  # many times what any model has, so that what is counted of one stays within 64 bits
    "layers": 10_000,
    "hidden": 200_000,
    "heads": 10_000,
    "ffn": 1_000_000,
    "sequence": 16_777_216,
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
    "expert_latent": 200_000,
    "dense_layers": 10_000,
    "expert_every": 10_000,
    "q_rank": 100_000,
    "kv_rank": 100_000,
    "rope_width": 10_000,
    "value_width": 10_000,
    "router_groups": 100_000,
    "router_topk_groups": 100_000,
    "mtp_layers": MOST_DEPTHS,
    "window": 16_777_216,
    "global_every": 10_000,
    "document": 10_000_000,
    "ssm_heads": 100_000,
    "ssm_width": 10_000,
    "ssm_state": 100_000,
    "ssm_groups": 10_000,
    "ssm_conv": MOST_CONV,
    "ssm_chunk": 1_000_000,
}
OF_ATTENTION = ("kv_heads", "head_width", "q_rank", "kv_rank", "rope_width", "value_width")
WINDOWS = ("window", "global_every", "document")
GROUPS = ("router_groups", "router_topk_groups")
WIDTHS_OF_EXPERTS = ("expert_ffn", "shared_ffn", "expert_latent")
OF_EXPERTS = ("experts", "topk", *WIDTHS_OF_EXPERTS, "dense_layers", *GROUPS)
OF_STATES = ("ssm_heads", "ssm_width", "ssm_state")
COUNTS = (*OF_ATTENTION, *WINDOWS, *OF_EXPERTS, *OF_STATES, "mtp_layers")
WIDTHS = ("layers", "hidden", "heads", "ffn", "sequence", "vocab")
AT_LEAST_ONE = (*WIDTHS, "ssm_groups", "ssm_conv", "ssm_chunk")
LEAST = {**dict.fromkeys(AT_LEAST_ONE, 1), **dict.fromkeys(COUNTS, 0)}
