"""What a golden run's arguments say of latent attention: fields of the model.

Its linears have no biases here and its positions are rotary; biases and a learned table, which a
row may have as well, are left out: of the last stage, which has no table, under 1 % of the states.
Source: github.com/NVIDIA/Megatron-LM, megatron/core/transformer: multi_latent_attention.py and
transformer_config.py (MLATransformerConfig), where --qk-head-dim is a head without its positions.
"""

from __future__ import annotations

from typing import Any

from validation.memory.golden_flags import Cells, number

FLAGS = {
    "q_rank": "q-lora-rank",
    "kv_rank": "kv-lora-rank",
    "head_width": "qk-head-dim",
    "rope_width": "qk-pos-emb-head-dim",
    "value_width": "v-head-dim",
}


def refusal(cells: Cells) -> str | None:
    """Why a row's latent attention cannot be read, if so."""
    lacking = [flag for flag in FLAGS.values() if number(cells, flag) is None]
    return f"latent attention without --{lacking[0]}" if lacking else None


def fields_of(cells: Cells) -> dict[str, Any]:
    """The fields of a model with latent attention."""
    widths = {field: number(cells, flag) for field, flag in FLAGS.items()}
    return {**widths, "kv_heads": 0, "biases": False, "positions": "rope"}
