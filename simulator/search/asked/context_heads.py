"""Plans whose neighbours on context trade rows for heads before keys go around a ring.

All plans of a part of a problem have the same `context_heads`, so its bounds are those of one more
kind of context: groups of neighbours, and of ranks across them, are known to every bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT

KEY = "context_heads"


def check(words: Sequence[str], gpt: GPT, fixed: Mapping[str, Any], *, splits: bool) -> None:
    """Refuse numbers of neighbours that no plan can have."""
    if words and not splits:
        raise PlanError(f"{KEY}={words[0]} is of split sequences: ask for these too")
    if words and fixed.get("context_kind", "ring") != "ring":
        raise PlanError(f"{KEY} needs context_kind=ring, not {fixed['context_kind']}")
    for word in words:
        if not word.isdecimal() or not 1 < int(word[:9]) <= gpt.heads:
            raise PlanError(f"{KEY}={word} must be a number from 2 to the {gpt.heads} heads")
        if gpt.heads % int(word) or gpt.kv_heads % int(word):
            kind = "heads" if gpt.heads % int(word) else "kv_heads"
            raise PlanCannotRunError(
                f"{KEY}={word} does not divide {kind}={getattr(gpt, kind)} of {gpt.name}"
            )


def trades(fixed: Mapping[str, Any], context: int) -> bool:
    """Whether so many ranks of context can be neighbours that trade heads, and others."""
    heads: int = fixed.get(KEY, 1)
    return heads == 1 or (context > heads and context % heads == 0)


def divides(fixed: Mapping[str, Any], gpt: GPT, x: int) -> bool:
    """Whether the heads of a rank of x can be traded."""
    parts: int = x * fixed.get(KEY, 1)
    return gpt.heads % parts == 0 and gpt.kv_heads % parts == 0


def alike(fixed: Mapping[str, Any], on_context: int, context: int) -> bool:
    """Whether neighbours on context that split experts are those that trade heads, all, or none."""
    return fixed.get(KEY, 1) in (1, on_context) or on_context in (1, context)
