"""The attention core where `context` splits each sequence, on whole sequences of some heads each.

Letters: c is the size of context. Before the core a rank sends each other one the queries, keys and
values of its heads, and so gets all tokens of a c-th of the heads; behind it contexts go back. The
copies that make each rank's part contiguous, and sort tokens by position, are ops of their own.
Source: Jacobs et al. (DeepSpeed Ulysses, 2309.14509), section 3.
Not modelled: fewer heads of keys than ranks, for which keys would be sent several times.
"""

from __future__ import annotations

from typing import Any

from workload.lowering.builder import Builder
from workload.lowering.layers import core_shape
from workload.op import KEYS_EXCHANGE

Shape = dict[str, Any]
NAME = "attention"


def forward(b: Builder, qkv: str, shape: Shape) -> tuple[str, tuple[str, ...]]:
    """Emit the core on a rank's rows of the fused tensor; returns the context, and what else the
    backward pass wants: the fused tensor of some heads, their context and its log-sum-exp."""
    own = _of_core(b, shape)
    whole = _to_tokens(b, qkv, f"{NAME}.qkv", core_shape.bands(own))
    width = core_shape.context_width(own)
    context = b.tensor(f"{NAME}.heads.o", (_rows(b), width))
    lse_shape = (b.plan.micro_batch, own["heads"], b.gpt.sequence)
    logsumexp = b.tensor(f"{NAME}.lse", lse_shape, b.wide)
    b.op(NAME, "attention", [whole], [context, logsumexp], **_work(b, own, 1))
    out = b.tensor(f"{NAME}.o", (b.rows, core_shape.context_width(shape)))
    _to_heads(b, context, f"{NAME}.o", (width,), out)
    return out, (whole, context, logsumexp)


def backward(b: Builder, saved: tuple[str, ...], grad: str, out: str, shape: Shape) -> None:
    """Emit the gradients of queries, keys and values, bands of `out`, from that of the context."""
    _, _, whole, context, logsumexp = saved
    own, name = _of_core(b, shape), f"{NAME}.grad"
    d = _to_tokens(b, grad, f"{name}.o", (core_shape.context_width(own),))
    d_whole = b.tensor(f"{name}.heads.dqkv", b.buffers[whole].shape)
    reads = [d, whole, context, logsumexp]
    b.op(name, "attention_grad", reads, [d_whole], **_work(b, own, 2))
    _to_heads(b, d_whole, f"{name}.dqkv", core_shape.bands(own), out)


def _of_core(b: Builder, shape: Shape) -> Shape:
    """What a rank's core works on, in place of its rows of all heads."""
    parts = b.grid.size(*b.shards_of("positions"))
    heads = {key: shape[key] // parts for key in ("heads", "kv_heads")}
    rows = {"rows": _rows(b)} if "rows" in shape else {}
    return {**shape, **heads, **rows, "spread": True}


def _rows(b: Builder) -> int:
    return b.plan.micro_batch * b.gpt.sequence


def _to_tokens(b: Builder, source: str, label: str, bands: tuple[int, ...]) -> str:
    """Emit the exchange of rows of all heads for all rows of some heads; returns these."""
    received = _sent(b, source, label, "split_heads", bands)
    whole = b.tensor(f"{label}.whole", (_rows(b), sum(bands)))
    b.op(f"{label}.join", "join_tokens", [received], [whole], **_how(b, bands))
    return whole


def _to_heads(b: Builder, source: str, label: str, bands: tuple[int, ...], out: str) -> None:
    """Emit the exchange of all rows of some heads for rows of all heads, into `out`."""
    received = _sent(b, source, label, "split_tokens", bands)
    b.op(f"{label}.join", "join_heads", [received], [out], **_how(b, bands))


def _sent(b: Builder, source: str, label: str, kind: str, bands: tuple[int, ...]) -> str:
    """Emit the copy of what goes to each rank, and the all-to-all; returns what comes."""
    axes = b.shards_of("positions")
    shape = (b.grid.size(*axes), b.rows, sum(bands))
    sent, received = b.tensor(f"{label}.sent", shape), b.tensor(f"{label}.received", shape)
    b.op(f"{label}.split", kind, [source], [sent], **_how(b, bands))
    exchange = f"{label}.exchange", "all_to_all", [sent], [received]
    b.collective(*exchange, *axes, purpose=KEYS_EXCHANGE)
    return received


def _how(b: Builder, bands: tuple[int, ...]) -> Shape:
    return {"bands": bands, "sequences": b.plan.micro_batch}


def _work(b: Builder, own: Shape, factor: int) -> Shape:
    flops = factor * core_shape.products_flops(own, _rows(b))
    return {"flops": flops, "replicas": b.grid.y, **own}
