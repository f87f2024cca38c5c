"""A router's choice of experts for each token, and the gradient of the scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workload.layout import ZEROS, Layout
from workload.lowering.builder import Builder
from workload.lowering.layers import linear
from workload.lowering.layers.mixers.experts import balance, gathered, rows
from workload.lowering.layers.mixers.experts.dispatch import (
    Routed,
    exchange,
    is_gathered,
    is_ragged,
    moved,
    routed_tokens,
    slots,
)
from workload.lowering.layers.sequence_parallel import parts
from workload.models import moe
from workload.op import COUNTING, EXPERT_DISPATCH, INPUT_GRAD, ROUTING, WEIGHT_GRAD, Part


def declare_router(b: Builder, owner: Part) -> None:
    """Declare the matrix that makes a token's logits, and their bias, if any."""
    shape = (b.gpt.hidden, b.gpt.moe.experts)
    layout = Layout(shape, shape, (b.shards_of("width"), ()))
    b.parameter(f"{owner}.router.w", owner, layout, sharded=False)
    if b.gpt.biases:
        layout = Layout(shape[1:], shape[1:], ((),), starts=ZEROS)
        b.parameter(f"{owner}.router.b", owner, layout, sharded=False)
    balance.declare(b, owner)


def route(b: Builder, owner: Part, normed: str, taken: str) -> tuple[str, str, Routed]:
    """Emit the choice of experts for the rows `normed`; returns the rows that are routed, which are
    those `taken`, their scores and the rest."""
    with b.within(ROUTING):
        routed, scores = _chosen(b, owner, normed)
    source, all_scores, all_chosen = taken, scores, routed.chosen
    if rows.gathered_over(b):
        source = rows.gather(b, "experts.rows", taken)
        all_scores = rows.gather(b, "experts.scores", scores)
        all_chosen = rows.gather(b, "experts.chosen", routed.chosen)
    return source, all_scores, _placed(b, source, all_chosen, routed)


def _chosen(b: Builder, owner: Part, normed: str) -> tuple[Routed, str]:
    """Emit the router and the choice; returns what is known of it so far, and the scores."""
    gpt, (tokens, width) = b.gpt, b.buffers[normed].shape
    logits = b.tensor("router.o", (tokens, gpt.moe.experts))
    shape = tokens, gpt.moe.experts, width
    reads, replicas = [normed, f"{owner}.router.w"], _copies(b)
    linear.matmul(b, "router.matmul", reads, logits, "NN", shape, replicas=replicas)
    b.all_reduce("router.reduce", logits, *b.shards_of("width"))
    if gpt.biases:
        b.op("router.bias", "bias", [logits, f"{owner}.router.b"], [logits])
    scores = b.tensor("route.scores", (tokens, gpt.moe.topk), b.wide)
    chosen = b.tensor("route.chosen", (tokens, gpt.moe.topk), "int64")
    biases = [balance.bias_of(owner)] if gpt.moe.router_bias else []
    how = _how(b)
    if gpt.moe.router_groups:
        how |= {"groups": gpt.moe.router_groups, "topk_groups": gpt.moe.router_topk_groups}
    b.op("route", "route", [logits, *biases], [scores, chosen], **how)
    sums = balance.forward(b, owner, logits, chosen)
    return Routed(logits, chosen, sums=sums), scores


def _placed(b: Builder, source: str, chosen: str, routed: Routed) -> Routed:
    """Emit which row goes to which place, and how many go to and come from each rank."""
    gpt = b.gpt
    if is_gathered(b) and not gpt.moe.capacity:
        order, counts = gathered.own_places(b, chosen)
        return replace(routed, order=order, sent=counts, counts=counts)
    order = b.tensor("dispatch.order", (slots(b, source),), "int64")
    sent = counts = b.tensor("dispatch.counts", (gpt.moe.experts,), "int64")
    places = moe.places(gpt, b.buffers[source].shape[0]) if gpt.moe.capacity else 0
    with b.within(COUNTING):
        b.op("dispatch.places", "places", [chosen], [order, sent], places=places)
    if is_gathered(b):
        order = gathered.own_of_places(b, order, b.buffers[source].shape[0])
    if is_ragged(b):
        counts = b.tensor("dispatch.counts.arrived", (gpt.moe.experts,), "int64")
        label, axes = "dispatch.counts.exchange", b.expert_axes
        how = {"purpose": EXPERT_DISPATCH, **exchange(b).attributes}
        with b.within(COUNTING):
            b.collective(label, "all_to_all", [sent], [counts], *axes, **how)
    return replace(routed, order=order, sent=sent, counts=counts)


def scores_grad(b: Builder, normed: str, routed: Routed, sent: str) -> str:
    """Emit the gradient of all scores from that of the scores sent."""
    if is_gathered(b):
        return gathered.scores_grad(b, sent, routed, routed_tokens(b, normed))
    shape = routed_tokens(b, normed), b.gpt.moe.topk
    return moved(b, "dispatch.scores.grad", "put_scores", [sent, routed.order], shape)


def route_grad(b: Builder, owner: Part, normed: str, routed: Routed, placed: str) -> str:
    """Emit the gradient of the routing from that of all scores; returns its rows'."""
    placed = rows.reduce(b, "dispatch.scores.grad.reduce", placed, *b.expert_tensor_axes)
    with b.within(ROUTING):
        return _choice_grad(b, owner, normed, routed, placed)


def _choice_grad(b: Builder, owner: Part, normed: str, routed: Routed, placed: str) -> str:
    gpt, (tokens, width) = b.gpt, b.buffers[normed].shape
    d_logits = b.tensor("route.dlogits", (tokens, gpt.moe.experts))
    reads = [placed, routed.logits, routed.chosen]
    b.op("route.grad", "route_grad", reads, [d_logits], **_how(b))
    balance.backward(b, routed.sums, routed.logits, d_logits)
    weight, m = f"{owner}.router.w", b.block.micro_batch
    if gpt.biases:
        reads, writes = b.grad_writes(f"{owner}.router.b", m)
        b.op("router.bias.grad", "column_sum", [d_logits, *reads], writes, first=b.starts)
    d = b.tensor("router.di", (tokens, width))
    shape = tokens, width, gpt.moe.experts
    reads, copies = [d_logits, weight], _copies(b)
    linear.matmul(b, "router.grad.input", reads, d, "NT", shape, INPUT_GRAD, copies)
    part = b.tensor("router.dw", (width, gpt.moe.experts), role="workspace")
    shape = width, gpt.moe.experts, tokens
    reads = [normed, d_logits]
    linear.matmul(b, "router.grad.weight", reads, part, "TN", shape, WEIGHT_GRAD, copies)
    reads, writes = b.grad_writes(weight, m)
    b.op("router.grad.accumulate", "accumulate", [part, *reads], writes, first=b.starts)
    return d


def _how(b: Builder) -> dict[str, Any]:
    return {"topk": b.gpt.moe.topk, "router": b.gpt.moe.router, "factor": b.gpt.moe.router_scale}


def _copies(b: Builder) -> int:
    """How many ranks route the same rows."""
    return b.grid.size(*b.shards_of("rows")) // parts(b)
