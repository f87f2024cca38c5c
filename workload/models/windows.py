"""Sliding windows: in some layers a token attends to the last few tokens alone.

Letters: s is the sequence, w the window in tokens, the token's own among them. Of the layers every
`global_every`-th attends to all tokens, with 0 none does.
Source: Beltagy et al. (Longformer, 2004.05150), section 3.1; Jiang et al. (Mistral 7B, 2310.06825),
section 2; OpenAI, gpt-oss (2508.10925), section 2.2, for every second layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workload.models import moe

if TYPE_CHECKING:
    from workload.gpt import GPT


def window_of(gpt: GPT, layer: int) -> int:
    """The tokens that a layer, by its number in the whole model, attends to at most; 0: all.

    >>> from workload.gpt import find_model
    >>> [window_of(find_model("gpt-oss-20b"), layer) for layer in range(4)]
    [128, 0, 128, 0]
    """
    if not has_windows(gpt):
        return 0
    return 0 if gpt.global_every and (layer + 1) % gpt.global_every == 0 else gpt.window


def has_windows(gpt: GPT) -> bool:
    """Whether a token of some layer attends to fewer than all tokens before it."""
    return bool(gpt.window) and gpt.window < gpt.sequence and gpt.global_every != 1


def keys_of(gpt: GPT, layer: int) -> int:
    """The keys that a layer counts for each query: w, or s for the whole square."""
    return window_of(gpt, layer) or gpt.sequence


def keys_of_layers(gpt: GPT) -> int:
    """The sum of `keys_of` over all layers."""
    if not has_windows(gpt):
        return gpt.layers * gpt.sequence
    whole = gpt.layers // gpt.global_every if gpt.global_every else 0
    return whole * gpt.sequence + (gpt.layers - whole) * gpt.window


def kind_of(gpt: GPT, layer: int) -> tuple[bool, int]:
    """What tells a layer from others: whether it has experts, and its window."""
    return moe.has_experts(gpt, layer), window_of(gpt, layer)


def refusals(gpt: GPT) -> list[str]:
    """What is wrong with a model's windows and sinks, in words that follow the model's name."""
    found = []
    if gpt.global_every and not gpt.window:
        found.append(f"global_every={gpt.global_every} needs window")
    for key in ("window", "sinks"):
        if getattr(gpt, key) and gpt.kv_rank:
            found.append(f"{key}={str(getattr(gpt, key)).lower()} goes without kv_rank")
    return found
