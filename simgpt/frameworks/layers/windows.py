"""Megatron-LM's arguments of attention within a window.

Sources: NVIDIA/Megatron-LM, megatron/training/arguments.py (`--window-size`,
`--window-attn-skip-freq`) and megatron/core/transformer/transformer_config.py (which layers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import Reading

WINDOW, WHOLE = "window-size", "window-attn-skip-freq"


def read(reading: Reading) -> None:
    """A window of as many tokens to the left as are named and the token itself, in layers whose
    number, from 1 on, is no multiple of the frequency."""
    fields, sides = reading.fields, reading.numbers(WINDOW)
    every = reading.text(WHOLE, "0")
    if not sides or sides[0] == -1:
        return
    if sides[0] < 0:
        reading.refuse(WINDOW, "the tokens to the left are -1 for all, or at least 0")
        return
    if every.isdecimal() and sides[1:] == [0]:
        fields |= {"window": sides[0] + 1, "global_every": reading.number(WHOLE)}
    else:
        reading.differs(WINDOW, "attention is over all tokens, not within a window")


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model's window."""
    if not fields["window"]:
        return {}
    whole = {WHOLE: fields["global_every"]} if fields["global_every"] else {}
    return {WINDOW: f"{fields['window'] - 1},0"} | whole
