"""Megatron-LM's arguments of rotary positions scaled as YaRN does, as a model's field, and back.

Sources, NVIDIA/Megatron-LM@d98e8a6: megatron/training/argument_utils.py
(`_apply_yarn_config_from_args`: the arguments and their defaults, of attention that is not latent)
and megatron/core/models/common/embeddings/yarn_rotary_pos_embedding.py (by what queries and keys
are multiplied).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose, log
from typing import Any

from simgpt.frameworks.reading import Reading
from workload.models.rope_scaling import YARN, RopeScaling, ramp, scaling_of

KIND = "position-embedding-type"
FACTOR, ORIGINAL = "rotary-scaling-factor", "yarn-original-max-position-embeddings"
TURNS = {"beta_fast": ("yarn-beta-fast", 32.0), "beta_slow": ("yarn-beta-slow", 1.0)}
OVER, UNDER = "mscale", "mscale-all-dim"  # weights of two factors, whose quotient is taken
WHOLE, NOT_WHOLE = "yarn-correction-range-round-to-int", "no-yarn-correction-range-round-to-int"
LENGTH = 4096
TYPE, LONG = "rope-type", "original_max_position_embeddings"


def read(reading: Reading) -> None:
    """Read a scaling of rotary positions, where attention is not latent."""
    if reading.text(KIND) != YARN or reading.switch("multi-latent-attention"):
        return
    factor = reading.real(FACTOR, 1.0)
    over, under = (ramp(reading.real(*each), factor) for each in ((OVER, 1.0), (UNDER, 0.0)))
    scaling = RopeScaling(
        method=YARN,
        factor=factor,
        original_max_position_embeddings=reading.number(ORIGINAL, LENGTH),
        attention_factor=over / under if under > 0 else 0.0,  # which is refused
        truncate=float(reading.switch(WHOLE, default=True) and not reading.switch(NOT_WHOLE)),
        **{key: reading.real(*argument) for key, argument in TURNS.items()},
    )
    reading.fields["rope_scaling"] = str(scaling)


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model's scaling, where it is YaRN's and attention is not latent."""
    scaling = scaling_of(fields["rope_scaling"])
    if scaling is None or scaling.method != YARN or fields["kv_rank"]:
        return {}
    settings: dict[str, Any] = {
        KIND: YARN,
        FACTOR: scaling.factor,
        ORIGINAL: int(scaling.original_max_position_embeddings),
        **{name: getattr(scaling, key) for key, (name, _) in TURNS.items()},
        OVER: _weight(scaling),
        UNDER: 0.0,
    }
    return settings | ({} if scaling.truncate else {NOT_WHOLE: True})


def written_latent(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of rotary positions in latent attention: as YaRN scales them, or plain ones.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py
    (`MLATransformerConfig`, whose rope_type is yarn unless it is told).
    """
    scaling = scaling_of(fields["rope_scaling"])
    if scaling is None or scaling.method != YARN:
        return {TYPE: "rope"}
    under = scaling.mscale_all_dim
    over = scaling.attention_factor * ramp(under, scaling.factor)
    weight = (over - 1.0) / (0.1 * log(scaling.factor)) if scaling.factor > 1 else 1.0
    settings: dict[str, Any] = {TYPE: YARN, FACTOR: scaling.factor}
    settings |= {OVER: round(weight, 9), UNDER: under}
    return settings | {
        name: value
        for name, usual, value in (
            ("original-max-position-embeddings", LENGTH, int(getattr(scaling, LONG))),
            ("beta-fast", 32.0, scaling.beta_fast),
            ("beta-slow", 1.0, scaling.beta_slow),
        )
        if value != usual
    }


def _weight(scaling: RopeScaling) -> float:
    """The weight by which queries and keys are multiplied by the scaling's own factor."""
    usual = isclose(scaling.attention_factor, ramp(1.0, scaling.factor), rel_tol=1e-9)
    if usual or scaling.factor <= 1:  # which has but one
        return 1.0
    return (scaling.attention_factor - 1.0) / (0.1 * log(scaling.factor))
