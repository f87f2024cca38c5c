"""What plans may have beside the usual choices where a search is asked for it by name.

Each of these choices makes a space several times as large, so none of them is tried unasked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from simulator.search.asked import context_heads
from simulator.search.asked.exchanges import of_exchanges
from simulator.stacks.stack import Stack
from workload.errors import PlanCannotRunError, PlanError
from workload.gpt import GPT
from workload.models.moe import layers_with_experts
from workload.passes.table import EVERY
from workload.pipeline.schedule import TWO_WAY, V_SHAPED
from workload.plan import text_of
from workload.recomputation.parts import (
    CORE,
    NONE,
    PARTS,
    RECOMPUTES,
    SELECTIVE,
    WORDS,
    model_refusal,
    text_refusal,
)

KEYS: Mapping[str, tuple[str, ...]] = {
    "recompute": tuple(PARTS),
    "overlap": of_exchanges(EVERY),
    context_heads.KEY: (),
    "schedule": V_SHAPED,
    "fp8_dispatch": ("true",),
    "etp": (),
}
NUMBERS = (context_heads.KEY, "etp")  # whose words are numbers
FIELDS = (
    context_heads.KEY,
    "schedule",
    "fp8_dispatch",
)  # of which a part of a problem has one value
EACH = ("recompute", "etp")  # of which plans of one part have different values
Asked = Mapping[str, tuple[str, ...]]


def check(asked: Asked, gpt: GPT, stack: Stack, fixed: Mapping[str, Any], *, splits: bool) -> None:
    """Refuse what is unknown, what the model or the stack has not, and what is fixed or cannot be
    kept."""
    if (kept := fixed.get("schedule")) in TWO_WAY:
        raise PlanError(
            f"a search cannot keep schedule={kept}, since its bounds are those of one copy of the "
            "model; predict the plans that it leaves, or search schedule=dualpipe-v"
        )
    for key, words in asked.items():
        if key in fixed and key != "overlap":  # which has more words beside those that are kept
            kept = text_of(fixed[key])
            raise PlanError(f"{key}={kept} is kept, so a search cannot also try others")
        for word in words if key not in NUMBERS else ():
            if word not in KEYS.get(key, ()):
                known = ", ".join(KEYS.get(key, KEYS))
                raise PlanError(f"a search cannot also try {key}={word}; it knows {known}")
    context_heads.check(asked.get(context_heads.KEY, ()), gpt, fixed, splits=splits)
    for word in asked.get("etp", ()):
        if not gpt.experts:
            raise PlanError(f"etp={word} splits experts; {gpt.name} has none")
        if not word.isdecimal() or not 1 < int(word[:9]) <= gpt.expert_ffn:
            most = f"expert_ffn={gpt.expert_ffn}"
            raise PlanError(f"etp={word} must be a number from 2 to {most}")
    for part in asked.get("recompute", ()):
        if why := _refusal(gpt, part):
            raise PlanCannotRunError(f"recompute={part} {why}")
    if "overlap" in asked and not gpt.experts:
        raise PlanError(
            f"overlap={asked['overlap'][0]} hides all-to-alls of experts; {gpt.name} has none"
        )
    for schedule in asked.get("schedule", ()):
        if schedule not in stack.can["schedules"]:
            known = ", ".join(stack.can["schedules"])
            raise PlanCannotRunError(
                f"the stack {stack.name} has no schedule={schedule}; it has {known}"
            )
    if "recompute" in asked and stack.recompute(SELECTIVE) != SELECTIVE:
        raise PlanCannotRunError(
            f"the stack {stack.name} recomputes layers whole or per op, not parts of them"
        )


def kept_recomputation(recompute: str) -> str:
    """Why a search cannot keep what plans recompute; "" where it can."""
    if ":" not in recompute and not text_refusal(recompute, 1):
        return ""
    return f"use {', '.join(RECOMPUTES)} or parts of layers, of {', '.join(PARTS)}"


def orders(asked: Asked) -> list[dict[str, Any]]:
    """The schedules of parts of a problem: any of the usual ones, or one that is asked for."""
    return [{}, *({"schedule": each} for each in asked.get("schedule", ()))]


def recomputations(asked: Asked, gpt: GPT, stack: Stack) -> list[str]:
    """What plans may recompute: nothing, what the stack's selective recomputation does, any of the
    parts that are asked for together, or whole layers, which need least memory."""
    parts = asked.get("recompute", ())
    every = (sorted(some, key=list(PARTS).index) for some in _sets(parts) if some != (CORE,))
    named = ["+".join(some) for some in every]
    *others, whole = RECOMPUTES
    others = [stack.recompute(each) for each in others]
    return [*others, *(some for some in named if not _refusal(gpt, some)), whole]


def said(beside: Sequence[str]) -> str:
    """Such overlaps as the end of a list of what plans have."""
    return f" and overlap={'+'.join(beside)}" if beside else ""


def within_parts(asked: Asked) -> Asked:
    """Those of which each plan of a part of a problem may have another."""
    return {key: words for key, words in asked.items() if key in EACH}


def of_layers(recompute: str, gpt: GPT) -> str:
    """What of `recompute` the layers of a part of a model have."""
    if recompute in WORDS:
        return recompute
    return "+".join(part for part in recompute.split("+") if not _refusal(gpt, part)) or NONE


def _sets(parts: Sequence[str]) -> list[tuple[str, ...]]:
    return [some for count in range(1, len(parts) + 1) for some in combinations(parts, count)]


def _refusal(gpt: GPT, recompute: str) -> str:
    return model_refusal(gpt, gpt.layers - layers_with_experts(gpt), recompute)
