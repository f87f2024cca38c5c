"""The attention core where `context` splits each sequence, on whole sequences of some heads each.

Letters: c is the size of context, or of the neighbours on it that trade heads (`context_heads`).
Before the core a rank sends each other one the queries, keys and values of its heads, and so gets
all tokens of a c-th of the heads; behind it contexts go back. The copies that make each rank's part
contiguous, and sort tokens by position, are ops of their own.
Source: Jacobs et al. (DeepSpeed Ulysses, 2309.14509), section 3.
Not modelled: fewer heads of keys than ranks, for which keys would be sent several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workload.grid import Axes
from workload.lowering.builder import Builder
from workload.lowering.layers import core_shape
from workload.op import KEYS_EXCHANGE

Shape = dict[str, Any]
Operands = tuple[Sequence[str], Sequence[str]]
NAME = "attention"


def forward(b: Builder, qkv: str, shape: Shape, sinks: str = "") -> tuple[str, tuple[str, ...]]:
    """Emit the core on a rank's rows of the fused tensor; returns the context, and what else the
    backward pass wants: the fused tensor of some heads, their context and its log-sum-exp."""
    axes = b.shards_of("positions")
    own = of_core(b, shape, axes)
    whole = to_tokens(b, qkv, f"{NAME}.qkv", core_shape.bands(own), axes)
    rows, width = b.buffers[whole].shape[0], core_shape.context_width(own)
    context = b.tensor(f"{NAME}.heads.o", (rows, width))
    lse_shape = core_shape.sums_shape(own, rows)
    logsumexp = b.tensor(f"{NAME}.lse", lse_shape, b.wide)
    reads = [whole, *([sinks] if sinks else [])]
    b.op(NAME, "attention", reads, [context, logsumexp], **_work(b, own, rows, 1))
    out = b.tensor(f"{NAME}.o", (b.rows, core_shape.context_width(shape)))
    to_heads(b, context, f"{NAME}.o", (width,), (out, axes))
    return out, (whole, context, logsumexp)


def backward(
    b: Builder, saved: tuple[str, ...], grad: str, out: str, shape: Shape, sinks: Operands
) -> None:
    """Emit the gradients of queries, keys and values, bands of `out`, from that of the context;
    `sinks` is what the core reads and writes besides."""
    _, _, whole, context, logsumexp = saved
    axes = b.shards_of("positions")
    own, name = of_core(b, shape, axes), f"{NAME}.grad"
    d = to_tokens(b, grad, f"{name}.o", (core_shape.context_width(own),), axes)
    d_whole = b.tensor(f"{name}.heads.dqkv", b.buffers[whole].shape)
    reads, writes = [d, whole, context, logsumexp, *sinks[0]], [d_whole, *sinks[1]]
    b.op(name, "attention_grad", reads, writes, **_work(b, own, b.buffers[whole].shape[0], 2))
    to_heads(b, d_whole, f"{name}.dqkv", core_shape.bands(own), (out, axes))


def of_core(b: Builder, shape: Shape, axes: Axes) -> Shape:
    """What a rank's core works on, in place of its rows of all heads, where ranks along some axes
    trade them; `spread` names these."""
    parts = b.grid.size(*axes)
    heads = {key: shape[key] // parts for key in ("heads", "kv_heads")}
    rows = {"rows": b.rows * parts} if "rows" in shape else {}
    return {**shape, **heads, **rows, "spread": axes}


def to_tokens(b: Builder, source: str, label: str, bands: tuple[int, ...], axes: Axes) -> str:
    """Emit the exchange of rows of all heads for more rows of some heads; returns these."""
    received = _sent(b, source, label, "split_heads", bands, axes)
    whole = b.tensor(f"{label}.whole", (b.rows * b.grid.size(*axes), sum(bands)))
    b.op(f"{label}.join", "join_tokens", [received], [whole], **_how(b, bands))
    return whole


def to_heads(
    b: Builder, source: str, label: str, bands: tuple[int, ...], target: tuple[str, Axes]
) -> None:
    """Emit the exchange of all rows of some heads for rows of all heads, into a tensor, over some
    axes."""
    out, axes = target
    received = _sent(b, source, label, "split_tokens", bands, axes)
    b.op(f"{label}.join", "join_heads", [received], [out], **_how(b, bands))


def _sent(
    b: Builder, source: str, label: str, kind: str, bands: tuple[int, ...], axes: Axes
) -> str:
    """Emit the copy of what goes to each rank, and the all-to-all; returns what comes."""
    shape = (b.grid.size(*axes), b.rows, sum(bands))
    sent, received = b.tensor(f"{label}.sent", shape), b.tensor(f"{label}.received", shape)
    b.op(f"{label}.split", kind, [source], [sent], **_how(b, bands))
    exchange = f"{label}.exchange", "all_to_all", [sent], [received]
    b.collective(*exchange, *axes, purpose=KEYS_EXCHANGE)
    return received


def _how(b: Builder, bands: tuple[int, ...]) -> Shape:
    return {"bands": bands, "sequences": b.plan.mbs}


def _work(b: Builder, own: Shape, rows: int, factor: int) -> Shape:
    flops = factor * core_shape.products_flops(own, rows)
    return {"flops": flops, "replicas": b.grid.y, **own}
