"""Which tokens attention is over: sliding windows in some layers, and documents packed together.

Letters: s is the sequence, or the document of a sequence that is packed of several, w the window in
tokens, the token's own among them. Of the layers every `global_every`-th attends to all tokens,
with 0 none does. Documents are all as long; positions count on over a sequence, and the loss has
the first token of a document behind the last one of the one before, as any other.
Source: Beltagy et al. (Longformer, 2004.05150), section 3.1; Jiang et al. (Mistral 7B, 2310.06825),
section 2; OpenAI, gpt-oss (2508.10925), section 2.2, for every second layer. Grattafiori et al.
(Llama 3, 2407.21783), section 3.2, for the mask between documents; NeMo's packed sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workload.models import moe
from workload.models.hybrids.pattern import ATTENTION, layers_with, mixer_of

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
    return bool(gpt.window) and gpt.window < span(gpt) and gpt.global_every != 1


def span(gpt: GPT) -> int:
    """The tokens of a document, or of a sequence that is one: what attention is over at most."""
    return gpt.document or gpt.sequence


def keys_of(gpt: GPT, layer: int) -> int:
    """The keys that a layer counts for each query: w, or s for the whole square."""
    return window_of(gpt, layer) or span(gpt)


def keys_of_layers(gpt: GPT) -> int:
    """The sum of `keys_of` over all layers."""
    if not has_windows(gpt):
        return layers_with(gpt, ATTENTION) * span(gpt)
    whole = gpt.layers // gpt.global_every if gpt.global_every else 0
    return whole * span(gpt) + (gpt.layers - whole) * gpt.window


def kind_of(gpt: GPT, layer: int) -> tuple[bool, int, str]:
    """What tells a layer from others: whether it has experts, its window, and its mixer where it
    has one alone."""
    return moe.has_experts(gpt, layer), window_of(gpt, layer), mixer_of(gpt, layer)


def refusals(gpt: GPT) -> list[str]:
    """What is wrong with a model's windows, sinks and documents, in words that follow the model's
    name."""
    found = []
    if gpt.document and gpt.sequence % gpt.document:
        found.append(f"document={gpt.document} does not divide sequence={gpt.sequence}")
    if gpt.document and gpt.dropout:
        found.append(f"document={gpt.document} goes without dropout, not {gpt.dropout:g}")
    if gpt.global_every and not gpt.window:
        found.append(f"global_every={gpt.global_every} needs window")
    for key in ("window", "sinks"):
        if getattr(gpt, key) and gpt.kv_rank:
            found.append(f"{key}={str(getattr(gpt, key)).lower()} goes without kv_rank")
    return found
