"""Megatron-LM's arguments of multi-latent attention, as fields of a model, and such as arguments.

Source of defaults: NVIDIA/Megatron-LM, megatron/training/arguments.py; of the norms, which
`--qk-layernorm` switches on: megatron/core/models/gpt/gpt_layer_specs.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.layers import rotary
from simgpt.frameworks.reading import Reading

WIDTHS = {"head_width": ("qk-head-dim", 128), "rope_width": ("qk-pos-emb-head-dim", 64)}
VALUES = ("v-head-dim", 128)
RANK = 32


def read(reading: Reading) -> None:
    """Read the widths of latent attention, if there is any."""
    if not reading.switch("multi-latent-attention"):
        return
    fields = reading.fields
    fields["kv_rank"] = reading.number("kv-lora-rank", RANK)
    fields["q_rank"] = reading.number("q-lora-rank")
    for field, (name, usual) in WIDTHS.items():
        fields[field] = reading.number(name, usual)
    values = reading.number(*VALUES)
    fields["value_width"] = values if values != fields["head_width"] else 0
    if fields.pop("kv_heads", 0):
        reading.differs("num-query-groups", "every head has keys of its own")
    if fields.get("positions") != "rope":
        fields["positions"] = "rope"
        fields["rope_base"] = reading.number("rotary-base", 10_000)
    if not fields.pop("qk_norm", False):
        reading.differs("multi-latent-attention", "there are norms behind what leads down")
    if fields.get("biases", True):
        fields["biases"] = False
        reading.differs("multi-latent-attention", "with latent attention, no linear has a bias")


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model with latent attention."""
    if not fields["kv_rank"]:
        return {}
    plain = fields["head_width"] or fields["hidden"] // fields["heads"]
    settings: dict[str, Any] = {
        "multi-latent-attention": True,
        "kv-lora-rank": fields["kv_rank"],
        "qk-head-dim": plain,
        "qk-pos-emb-head-dim": fields["rope_width"],
        "v-head-dim": fields["value_width"] or plain,
        "qk-layernorm": True,
        **rotary.written_latent(fields),
    }
    return settings | ({"q-lora-rank": fields["q_rank"]} if fields["q_rank"] else {})
