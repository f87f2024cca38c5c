"""Which tokens attention is over: sliding windows in some layers, and documents packed together.

Letters: s is the sequence, or the document of a sequence that is packed of several, w the window in
tokens, the token's own among them. Of the layers every `global_every`-th attends to all tokens,
with 0 none does. Documents are all as long, or as `documents` says (documents.py);
positions count on over a sequence, and the loss has the first token of a document behind the last
one of the one before, as any other.
Source: Beltagy et al. (Longformer, 2004.05150), section 3.1; Jiang et al. (Mistral 7B, 2310.06825),
section 2; OpenAI, gpt-oss (2508.10925), section 2.2, for every second layer. Grattafiori et al.
(Llama 3, 2407.21783), section 3.2, for the mask between documents; NeMo's packed sequences.
"""

from __future__ import annotations

from fractions import Fraction

from workload.model.fields import ModelFields
from workload.models import documents, moe
from workload.models.mixers import layers_with
from workload.models.pattern import ATTENTION, mixer_of


def window_of(gpt: ModelFields, layer: int) -> int:
    """The tokens that a layer, by its number in the whole model, attends to at most; 0: all.

    >>> from workload.gpt import find_model
    >>> [window_of(find_model("gpt-oss-20b"), layer) for layer in range(4)]
    [128, 0, 128, 0]
    """
    if not has_windows(gpt):
        return 0
    return (
        0
        if gpt.attention.global_every and (layer + 1) % gpt.attention.global_every == 0
        else gpt.attention.window
    )


def has_windows(gpt: ModelFields) -> bool:
    """Whether a token of some layer attends to fewer than all tokens before it."""
    return (
        bool(gpt.attention.window)
        and gpt.attention.window < span(gpt)
        and gpt.attention.global_every != 1
    )


def document_of(gpt: ModelFields) -> int:
    """The tokens of each document, where all are as long; else 0."""
    return gpt.packing.document or documents.one_length(gpt.packing.documents)


def packing_of(gpt: ModelFields) -> str:
    """The lengths of documents, as `documents` has them, where there are several; else nothing."""
    return "" if document_of(gpt) else gpt.packing.documents


def span(gpt: ModelFields) -> int:
    """The tokens of the longest document, or of a sequence that is one: what attention is over at
    most."""
    packing = packing_of(gpt)
    return max(documents.lengths(packing)) if packing else document_of(gpt) or gpt.sequence


def keys_of_layers(gpt: ModelFields) -> int | Fraction:
    """The keys that all layers count for each query: of each layer w, or s for the whole square; of
    documents of several lengths in the mean."""
    every = layers_with(gpt, ATTENTION)
    if not has_windows(gpt):
        return every * _keys(gpt, 0)
    whole = gpt.layers // gpt.attention.global_every if gpt.attention.global_every else 0
    return whole * _keys(gpt, 0) + (gpt.layers - whole) * _keys(gpt, gpt.attention.window)


def masked_keys_of_layers(gpt: ModelFields) -> Fraction:
    """The keys of all layers that the causal mask takes from a query, in the mean of all queries: a
    token sees itself and what is before it in its document, within a window the last w of these."""
    every = layers_with(gpt, ATTENTION)
    if not has_windows(gpt):
        return every * _masked_keys(gpt, 0)
    whole = gpt.layers // gpt.attention.global_every if gpt.attention.global_every else 0
    return whole * _masked_keys(gpt, 0) + (gpt.layers - whole) * _masked_keys(
        gpt, gpt.attention.window
    )


def _masked_keys(gpt: ModelFields, window: int) -> Fraction:
    packing = packing_of(gpt)
    found = documents.lengths(packing) if packing else (span(gpt),)
    widths = [min(window or length, length) for length in found]
    return Fraction(sum(width * (width - 1) for width in widths), 2 * sum(found))


def _keys(gpt: ModelFields, window: int) -> int | Fraction:
    if packing := packing_of(gpt):
        return Fraction(documents.counted_pairs(packing, window), gpt.sequence)
    return window or span(gpt)


def kind_of(gpt: ModelFields, layer: int) -> tuple[bool, int, str]:
    """What tells a layer from others: whether it has experts, its window, and its mixer where it
    has one alone."""
    return moe.has_experts(gpt, layer), window_of(gpt, layer), mixer_of(gpt, layer)


def refusals(gpt: ModelFields) -> list[str]:
    """What is wrong with a model's windows, sinks and documents, in words that follow the model's
    name."""
    found = list(documents.refusals(gpt)) if gpt.packing.documents else []
    if gpt.packing.document and gpt.sequence % gpt.packing.document:
        found.append(f"document={gpt.packing.document} does not divide sequence={gpt.sequence}")
    if gpt.packing.document and gpt.dropout:
        found.append(f"document={gpt.packing.document} needs dropout=0, not {gpt.dropout:g}")
    if gpt.attention.global_every and not gpt.attention.window:
        found.append(f"global_every={gpt.attention.global_every} needs window")
    for key in ("window", "sinks"):
        if gpt.value(key) and gpt.latent.kv_rank:
            found.append(f"{gpt.said(key)} cannot be combined with kv_rank")
    return found
