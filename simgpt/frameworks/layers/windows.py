"""Megatron-LM's arguments of attention within a window.

Sources: NVIDIA/Megatron-LM, megatron/training/arguments.py (`--window-size`,
`--window-attn-skip-freq`) and megatron/core/transformer/transformer_config.py (which layers);
NVIDIA/TransformerEngine@d0067d0, transformer_engine/pytorch/attention/dot_product_attention/
context_parallel.py (`attn_forward_func_with_cp`: which kinds of context windows and sinks go with).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import Reading
from workload.errors import PlanCannotRunError

KINDS = {"sinks": ("ulysses",), "window": ("ulysses", "all_gather")}  # of context, beside them
WINDOW, WHOLE = "window-size", "window-attn-skip-freq"


def read(reading: Reading) -> None:
    """A window of as many tokens to the left as are named and the token itself, in layers whose
    number, from 1 on, is no multiple of the frequency."""
    fields, sides = reading.fields, re.findall(r"-?\d+", reading.text(WINDOW))
    every = reading.text(WHOLE, "0")
    if not sides or int(sides[0]) < 0:
        return
    if every.isdecimal() and [int(side) for side in sides[1:]] == [0]:
        fields |= {"window": int(sides[0]) + 1, "global_every": int(every)}
    else:
        reading.differs(WINDOW, "attention is over all tokens, not within a window")


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model's window; refused with kinds of context that it does not go with."""
    _check(fields)
    if not fields["window"]:
        return {}
    whole = {WHOLE: fields["global_every"]} if fields["global_every"] else {}
    return {WINDOW: f"{fields['window'] - 1},0"} | whole


def _check(fields: Mapping[str, Any]) -> None:
    """Refuse windows and sinks where parts of sequences meet as they do not go with."""
    kind, heads = fields["context_kind"], fields["context_heads"]
    for key, kinds in KINDS.items():
        if fields[key] and fields["context"] > 1 and (kind not in kinds or heads > 1):
            said = f"context_heads={heads}" if heads > 1 else f"context_kind={kind}"
            raise PlanCannotRunError(
                f"Megatron-LM does not run {key}={str(fields[key]).lower()} with {said}; give "
                f"{' or '.join(f'context_kind={each}' for each in kinds)}"
            )
