"""Tokens of all ranks gathered, the rows of own experts taken, and their outputs scattered back.

Letters: T tokens of a rank, k experts for each, P ranks that hold different experts. Each rank
gathers the tokens, scores and choices of all P, takes the rows that its own experts were chosen
for, and the sums of what these make of them are reduced over the P ranks, each of which keeps that
of its own tokens; in the backward pass likewise. So P T rows are gathered whatever the routing
says, where an all-to-all sends k T: fewer where k is above P. Own rows are kept, those gathered
are not. With a capacity the places of all ranks are gathered, as their senders filled them.
Source: Megatron-Core, transformer/moe/token_dispatcher.py, MoEAllGatherTokenDispatcher.
Not modelled: there one collective goes over ranks of x that split an expert as well, here x has
its own; and scores and choices of all experts are gathered, here those of the chosen.
"""

from __future__ import annotations

from typing import Any

from workload.expert_loads.histogram import most_rows
from workload.kinds import OWN_PLACES
from workload.lowering.builder import Builder
from workload.lowering.layers.mixers.experts.dispatch import Routed, local_experts, width
from workload.models import moe
from workload.op import COUNTING, EXPERT_COMBINE, EXPERT_DISPATCH


def own_places(b: Builder, chosen: str) -> tuple[str, str]:
    """Emit the choices of all ranks' tokens that this rank's experts are; returns these, by expert
    and then by token, and how many each expert has."""
    every = _gather(b, "dispatch.chosen", chosen)
    counts = b.tensor("dispatch.counts", (local_experts(b),), "int64")
    how = _how(b)
    with b.within(COUNTING):
        b.op("dispatch.counts", "count_own", [every], [counts], **how)
    sent = b.buffers[chosen].shape[0] * b.gpt.moe.topk
    expected = most_rows(b.gpt, b.block.part.layer, sent, b.plan.ep)
    order = b.tensor("dispatch.order", (expected,), "int64", rows_of=counts)
    with b.within(COUNTING):
        b.op("dispatch.places", OWN_PLACES, [every], [order], places=0, **how)
    return order, counts


def own_of_places(b: Builder, filled: str, tokens: int) -> str:
    """Emit the places of this rank's experts among the `filled` ones of all ranks, by expert and
    then by rank; returns which choice of all tokens each has."""
    every = _gather(b, "dispatch.filled", filled)
    order = b.tensor("dispatch.order.own", b.buffers[filled].shape, "int64")
    how = _how(b) | {"places": moe.places(b.gpt, tokens), "choices": tokens * b.gpt.moe.topk}
    with b.within(COUNTING):
        b.op("dispatch.places.own", OWN_PLACES, [every], [order], **how)
    return order


def sent(b: Builder, source: str, scores: str, routed: Routed) -> tuple[str, str]:
    """Emit the gathers of tokens and of their scores, and the rows of own experts; returns these
    and their scores."""
    tokens = _gather(b, "dispatch.tokens", source)
    every = _gather(b, "dispatch.scores", scores)
    rows = _taken(b, "dispatch", "take_rows", tokens, routed, width(b))
    return rows, _taken(b, "dispatch.scores", "take_scores", every, routed)


def combined(b: Builder, source: str, rows: str, routed: Routed) -> str:
    """Emit the sum of rows for each token of all ranks, and its sum over these for `source`."""
    return _summed(b, "combine", "sum_rows", rows, routed, b.buffers[source].shape)


def combined_grad(b: Builder, grad: str, routed: Routed) -> str:
    """Emit the gradients of own experts' rows from that of the sums."""
    every = _gather(b, "combine.grad.tokens", grad, EXPERT_COMBINE)
    return _taken(b, "combine.grad", "take_rows", every, routed, width(b))


def sent_grad(b: Builder, source: str, rows: str, routed: Routed) -> str:
    """Emit the gradient of the tokens `source` from those of own experts' rows."""
    shape = b.buffers[source].shape
    return _summed(b, "dispatch.grad", "sum_rows", rows, routed, shape, EXPERT_DISPATCH)


def scores_grad(b: Builder, scores: str, routed: Routed, tokens: int) -> str:
    """Emit the gradient of all scores from those of own experts' rows."""
    label, shape = "dispatch.scores.grad", (tokens, b.gpt.moe.topk)
    return _summed(b, label, "put_scores", scores, routed, shape, EXPERT_DISPATCH)


def _taken(b: Builder, label: str, kind: str, source: str, routed: Routed, *columns: int) -> str:
    """Emit what the choices of own experts have of all tokens'."""
    own = b.buffers[routed.order]
    shape, dtype = (*own.shape, *columns), b.buffers[source].dtype
    out = b.tensor(f"{label}.{kind}", shape, dtype, rows_of=own.rows_of)
    b.op(f"{label}.{kind}", kind, [source, routed.order], [out], topk=b.gpt.moe.topk)
    return out


def _summed(
    b: Builder,
    label: str,
    kind: str,
    rows: str,
    routed: Routed,
    shape: tuple[int, ...],
    purpose: str = EXPERT_COMBINE,
) -> str:
    """Emit what own experts give all tokens, and its sum over ranks, of which each keeps a part of
    this shape."""
    dtype, (tokens, *columns) = b.buffers[rows].dtype, shape
    name, every = f"{label}.{kind}", (tokens * b.plan.ep, *columns)
    total = b.tensor(name, every, dtype, role="gathered")
    b.op(name, kind, [rows, routed.order], [total], topk=b.gpt.moe.topk)
    part = b.tensor(f"{label}.o", shape, dtype)
    axes = b.expert_axes
    b.collective(f"{label}.scatter", "reduce_scatter", [total], [part], *axes, purpose=purpose)
    return part


def _gather(b: Builder, label: str, part: str, purpose: str = EXPERT_DISPATCH) -> str:
    """Emit the gather of all ranks' parts."""
    own = b.buffers[part]
    first, *rest = own.shape
    whole = b.tensor(f"{label}.o", (first * b.plan.ep, *rest), own.dtype, role="gathered")
    axes = b.expert_axes
    b.collective(f"{label}.gather", "all_gather", [part], [whole], *axes, purpose=purpose)
    return whole


def _how(b: Builder) -> dict[str, Any]:
    return {"local": local_experts(b), "expert_axes": b.expert_axes}
