"""Latent attention around its core: down to a few numbers for each token, a norm, up to the heads.

What leads down is not split over x: each of its ranks does all rows alike, or with sequence
parallelism its own, of whose results only the narrow ones are gathered. What leads up is split over
x by heads as other linears are. The keys' positions are one part for all heads, so its gradient is
summed over those of all ranks. The core finds queries, keys and values side by side, as ever.
Source: DeepSeek-V2 (2405.04434), section 2.1; Megatron-Core, transformer/multi_latent_attention.py
(down-projections in copies, gathers behind them; what is kept for the backward pass: the compressed
numbers before and behind their norms, queries, keys and values).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topologies.records import record
from workload.lowering.builder import Builder
from workload.lowering.layers import copied_linear, linear, norm
from workload.lowering.layers import sequence_parallel as rows
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixers import attention
from workload.models import latent_attention
from workload.op import Part


@record
class Saved:
    """Names of what the way to the core leaves behind: what each of its norms had, gave and
    counted, the weight tiles used, by linear, and the part of keys that is for positions."""

    queries: tuple[str, str, str]
    keys: tuple[str, str, str]
    weights: dict[str, str]
    positions: str


def linears(b: Builder) -> dict[str, Linear]:
    """The linears on the way to the core: those down in copies, those up split over x."""
    gpt = b.gpt
    down = (
        {"q_down": Linear("q_down", gpt.hidden, (gpt.latent.q_rank,))} if gpt.latent.q_rank else {}
    )
    return {
        **down,
        "q_up": Linear("q_up", gpt.latent.q_rank or gpt.hidden, gpt.bands[:1]),
        "kv_down": Linear("kv_down", gpt.hidden, (gpt.latent.kv_rank + gpt.latent.rope_width,)),
        "kv_up": Linear("kv_up", gpt.latent.kv_rank, latent_attention.up_bands(gpt)),
    }


def declare(b: Builder, owner: Part) -> None:
    """Declare the parameters in the order in which they are used."""
    widths = {"q_down": b.gpt.latent.q_rank, "kv_down": b.gpt.latent.kv_rank}
    for name, each in linears(b).items():
        if name not in widths:
            linear.declare(b, each, owner)
            continue
        copied_linear.declare(b, each, owner)
        norm.declare(b, f"{owner}.{_norm(name)}", owner, width=widths[name])


def forward(b: Builder, owner: Part, source: str) -> tuple[str, Saved]:
    """Emit everything from the rows `source` to the core's queries, keys and values."""
    every, weights = linears(b), dict[str, str]()
    of_queries = ("", source, "")
    if b.gpt.latent.q_rank:
        down, weights["q_down"] = copied_linear.forward(b, every["q_down"], owner, source)
        of_queries = _normed(b, owner, "q_norm", down)
    queries, weights["q_up"] = linear.forward(b, every["q_up"], owner, of_queries[1])
    down, weights["kv_down"] = copied_linear.forward(b, every["kv_down"], owner, source)
    count = b.buffers[down].shape[0]
    compressed = b.tensor("kv.compressed", (count, b.gpt.latent.kv_rank))
    positions = b.tensor("kv.positions", (count, b.gpt.latent.rope_width))
    b.op("kv.split", "split_columns", [down], [compressed, positions])
    of_keys = _normed(b, owner, "kv_norm", compressed)
    if b.plan.context.latents:
        positions = rows.gather(b, "kv.positions.rows", positions)
        turned = [queries, positions]
        b.op("latent.turn", "latent_turn", turned, turned, **how(b))
        return queries, Saved(of_queries, of_keys, weights, positions)
    up, weights["kv_up"] = linear.forward(b, every["kv_up"], owner, of_keys[1])
    positions = rows.gather(b, "kv.positions.rows", positions)
    return _joined(b, queries, up, positions), Saved(of_queries, of_keys, weights, positions)


def again(b: Builder, owner: Part, saved: Saved) -> tuple[str, Saved]:
    """Emit once more the norms and what leads up, which Transformer Engine has in one kernel;
    returns the core's queries, keys and values, and what is at hand then.

    Source: NVIDIA/Megatron-LM, megatron/core/models/gpt/gpt_layer_specs.py (linear_q_up_proj).
    """
    every, of_queries = linears(b), saved.queries
    if b.gpt.latent.q_rank:
        of_queries = _normed(b, owner, "q_norm", of_queries[0])
    queries, _ = linear.forward(b, every["q_up"], owner, of_queries[1])
    of_keys = _normed(b, owner, "kv_norm", saved.keys[0])
    up, _ = linear.forward(b, every["kv_up"], owner, of_keys[1])
    qkv = _joined(b, queries, up, saved.positions)
    return qkv, replace(saved, queries=of_queries, keys=of_keys)


def _normed(b: Builder, owner: Part, name: str, source: str) -> tuple[str, str, str]:
    return (source, *norm.forward(b, name, f"{owner}.{name}", source))


def behind(saved: Saved, normed: str) -> Saved:
    """`saved` behind a norm that ran once more: queries that are not compressed come from it."""
    source, _, stats = saved.queries
    return saved if stats else replace(saved, queries=(source, normed, stats))


def _joined(b: Builder, queries: str, up: str, positions: str) -> str:
    shape = attention.shape_of(b)
    columns = shape["heads"] * (2 * shape["width"] + b.gpt.context_width // b.gpt.attention.heads)
    qkv = b.tensor("latent.qkv", (b.rows, columns))
    b.op("latent.qkv", "latent_qkv", [queries, up, positions], [qkv], **how(b))
    return qkv


def backward(b: Builder, owner: Part, saved: Saved, source: str, grad: str, *, held: bool) -> str:
    """Emit the gradients from `grad`, that of queries, keys and values; returns that of the rows
    `source`.

    `held` says that the recomputation's gathered weights are still there.
    """
    every = linears(b)
    weights = saved.weights if held else dict.fromkeys(saved.weights, "")
    up = [b.tensor(f"{n}.do", (b.rows, every[n].n // b.grid.tp)) for n in ("q_up", "kv_up")]
    positions = b.tensor("kv.positions.grad", (b.rows, b.gpt.latent.rope_width))
    b.op("latent.qkv.grad", "latent_qkv_grad", [grad], [*up, positions], **how(b))
    positions = rows.reduce(b, "kv.positions.grad.reduce", positions, *b.shards_of("heads"))
    d = _up_grad(b, "kv", owner, saved.keys, weights["kv_up"], up[1])
    return into_source(b, owner, replace(saved, weights=weights), source, (up[0], d, positions))


def into_source(
    b: Builder, owner: Part, saved: Saved, source: str, grads: tuple[str, str, str]
) -> str:
    """Emit what is left from the gradients of queries, of the compressed numbers of keys and values
    and of the positions' part; returns that of the rows `source`. Of `saved` only the weights that
    are held are there."""
    every, weights = linears(b), saved.weights
    queries, d, positions = grads
    width = b.gpt.latent.kv_rank + b.gpt.latent.rope_width
    joined = b.tensor("kv_down.do", (b.buffers[d].shape[0], width))
    b.op("kv.join", "join_columns", [d, positions], [joined])
    total = copied_linear.backward(b, every["kv_down"], owner, source, weights["kv_down"], joined)
    d = _up_grad(b, "q", owner, saved.queries, weights["q_up"], queries)
    if b.gpt.latent.q_rank:
        d = copied_linear.backward(b, every["q_down"], owner, source, weights["q_down"], d)
    b.op("latent.add", "add", [total, d], [total])
    return total


def _up_grad(
    b: Builder, which: str, owner: Part, kept: tuple[str, str, str], weight: str, grad: str
) -> str:
    """Emit the gradients of a linear up, and of the norm before it, if any."""
    source, normed, stats = kept
    own = linears(b)[f"{which}_up"]
    d = linear.backward(b, own, owner, source=normed, weight=weight, grad=grad)
    if stats:
        norm.backward(b, f"{which}_norm", f"{owner}.{which}_norm", (source, stats), d)
    return d


def _norm(down: str) -> str:
    return down.replace("down", "norm")


def how(b: Builder) -> dict[str, Any]:
    """What kernels between the linears and the core know: heads, widths, how positions turn."""
    turned = {"base": b.gpt.attention.rope_base, "scaling": b.gpt.attention.rope_scaling}
    return {**attention.shape_of(b), "rope_width": b.gpt.latent.rope_width, **turned}
