"""Rows from tokens to places of experts and back, as the plan's dispatcher moves them."""

from __future__ import annotations

from workload.exchange.table import Moves
from workload.lowering.builder import Builder
from workload.lowering.layers.mixers.experts import by_masks, by_scores, gathered, rows
from workload.lowering.layers.mixers.experts.by_masks import Masks
from workload.lowering.layers.mixers.experts.by_scores import Scored
from workload.lowering.layers.mixers.experts.dispatch import (
    Routed,
    exchange,
    is_gathered,
    moved,
    slots,
)
from workload.lowering.layers.mixers.narrow_rows import narrowed
from workload.recipes.table import GRADIENT

Kept = Masks | Scored | None  # what weighs rows when they are back; None: they bring their scores


def sent(b: Builder, source: str, scores: str, routed: Routed) -> tuple[str, str, Kept]:
    """Emit the rows for all places; returns these, and their scores or what weighs them when they
    are back."""
    if exchange(b).moves is Moves.BY_MASKS:
        found, masks = by_masks.sent(b, source, scores, routed)
        return found, "", masks
    if is_gathered(b):
        return *gathered.sent(b, source, scores, routed), None
    count, order = slots(b, source), routed.order
    tokens = narrowed(b, "dispatch", source)
    shape = count, b.buffers[tokens].shape[1]
    found = moved(b, "dispatch", "take_rows", [tokens, order], shape)
    if exchange(b).moves is Moves.WEIGHED:
        return found, "", Scored(scores)
    return found, moved(b, "dispatch.scores", "take_scores", [scores, order], (count,)), None


def combined(b: Builder, source: str, returned: str, routed: Routed, kept: Kept) -> str:
    """Emit the sum of what returned for each token of `source`."""
    if isinstance(kept, Masks):
        return by_masks.combined(b, kept)
    if isinstance(kept, Scored):
        return by_scores.combined(b, kept, source, routed)
    if is_gathered(b):
        return gathered.combined(b, source, returned, routed)
    return moved(b, "combine", "sum_rows", [returned, routed.order], b.buffers[source].shape)


def combined_grad(b: Builder, grad: str, routed: Routed, kept: Kept) -> tuple[str, str]:
    """Emit the gradient of the rows that returned; returns it, and that of all scores where these
    weighed them."""
    whole = rows.gather(b, "combine.grad.rows", grad)
    if isinstance(kept, Masks):
        return by_masks.combined_grad(b, kept, whole, routed)
    if isinstance(kept, Scored):
        return by_scores.combined_grad(b, kept, whole, routed)
    if is_gathered(b):
        return gathered.combined_grad(b, whole, routed), ""
    tokens = narrowed(b, "combine.grad", whole, kind=GRADIENT)
    shape = slots(b, whole), b.buffers[tokens].shape[1]
    return moved(b, "combine.grad", "take_rows", [tokens, routed.order], shape), ""


def sent_grad(b: Builder, source: str, grad: str, routed: Routed, kept: Kept) -> str:
    """Emit the gradient of the tokens `source` from that of the rows at all places."""
    if isinstance(kept, Masks):
        return by_masks.sent_grad(b, kept, grad)
    if is_gathered(b):
        return gathered.sent_grad(b, source, grad, routed)
    return moved(b, "dispatch.grad", "sum_rows", [grad, routed.order], b.buffers[source].shape)
