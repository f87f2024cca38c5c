"""Megatron-LM's arguments of gated activations and of sinks, as fields of a model, and such as
arguments.

Sources, NVIDIA/Megatron-LM@d98e8a6: megatron/training/argument_utils.py
(`core_transformer_config_from_args`: `--quick-geglu` has a gate), megatron/core/fusions/
fused_bias_geglu.py (`quick_gelu`: a sigmoid of 1.702 times the gate; clamps in
`weighted_bias_quick_geglu_impl`), megatron/core/transformer/transformer_config.py (`softmax_type`)
and, of fusions that are not there, megatron/core/transformer/mlp.py and moe/experts.py. Of flash
and fused attention the second alone has sinks: NVIDIA/TransformerEngine@d0067d0,
transformer_engine/pytorch/attention/dot_product_attention/utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import Reading

GATED = ("quick-geglu", "geglu")  # the second in recipes of NeMo alone
CLAMP, OFFSET, SINKS = "activation-func-clamp-value", "glu-linear-offset", "softmax-type"
CLAMPED, SWIGLU, GELU = "clamped_swiglu", "swiglu", "gelu"
WIDEST, ADDED = 7.0, 1.0  # gpt-oss' (workload/gpt.py, clamped_swiglu)
LEARNT, PLAIN = "learnable", "vanilla"


def read(reading: Reading) -> None:
    """Read a gate beside another activation than SiLU, and what attends to nothing."""
    for name in GATED:
        if reading.switch(name):
            _read_gated(reading, name)
    kind = reading.text(SINKS, PLAIN)
    if kind == LEARNT:
        reading.fields["sinks"] = True
    elif kind != PLAIN:
        reading.differs(SINKS, "the usual softmax")


def _read_gated(reading: Reading, name: str) -> None:
    """gpt-oss' SwiGLU where gate and up are clamped, and else SwiGLU, which is gated alike."""
    if not (widest := reading.real(CLAMP, 0.0)) or name != GATED[0]:
        reading.fields["activation"] = SWIGLU
        reading.differs(name, "SwiGLU, which has as many weights")
        return
    reading.fields["activation"] = CLAMPED
    if widest != WIDEST:
        reading.differs(CLAMP, f"gate and up are clamped to {WIDEST:g}")
    if reading.real(OFFSET, 0.0) != ADDED:
        reading.differs(OFFSET if reading.given(OFFSET) else name, f"{ADDED:g} is added to up")


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of gpt-oss' activation and sinks, and of fusions that Megatron-LM has not."""
    settings: dict[str, Any] = {}
    if fields["activation"] == CLAMPED:
        settings |= {GATED[0]: True, OFFSET: ADDED, CLAMP: WIDEST}
    if fields["sinks"]:
        settings |= {SINKS: LEARNT, "attention-backend": "fused"}
    if not fields["biases"]:
        return settings
    experts = fields["experts"]
    dense = not experts or fields["dense_layers"] or fields["expert_every"] > 1
    if (fields["activation"] == CLAMPED and dense) or (fields["activation"] == GELU and experts):
        settings["no-bias-gelu-fusion"] = True
    return settings | ({"no-bias-dropout-fusion": True} if experts else {})
