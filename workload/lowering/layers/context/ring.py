"""The attention core where `context` splits each sequence: keys and values meet.

Letters: c is the size of context. A sequence is cut into 2c chunks, of which rank i has the i-th
from either end, so that all have as much to do under the causal mask (by row in
executor/kernels/context/positions.py). A rank keeps its own keys and values alone; they meet again
in the backward pass.

With "all_gather" every rank gathers all keys and values, and their gradients are summed and
scattered, all on the compute stream. What "ulysses" does is in ulysses.py.
Source: Grattafiori et al. (Llama 3, 2407.21783), section 3.3.2.

With "ring" the keys and values go around, on a stream of their own: in each of c steps a rank
attends to those at hand while the next ones come, and the contexts are merged by their sums of
exponentials. In the backward pass the gradients of keys and values follow these around the ring and
come home with the last step. After the first step, half of the square of queries and keys has none
of the mask: all queries with the half of the keys of earlier ranks, or half of the queries with all
keys of later ones.
With `context_heads` so many neighbours first trade rows of all heads for more rows of some, and the
ring goes over the others ("outer_cp"): neighbours have together the chunks of one of these.
Source: Liu et al. (Ring Attention, 2310.01889); NVIDIA/TransformerEngine,
attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVP2P (both: its "a2a+p2p").
Sinks are one more key of a query, in the first step. Windows and documents leave out steps without
anything to do (further/ring_steps.py). Documents of several lengths give ranks different work, and
the others wait for the busiest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from workload.grid import Axes
from workload.kinds import RING_SHIFT
from workload.lowering.builder import Builder
from workload.lowering.layers import core_shape
from workload.lowering.layers.context import ring_steps, ulysses
from workload.op import CAUSAL, KEYS_EXCHANGE, QUERIES

Shape = dict[str, Any]
Operands = tuple[Sequence[str], Sequence[str]]
NAME = "attention"


def forward(b: Builder, qkv: str, shape: Shape, sinks: str = "") -> tuple[str, tuple[str, ...]]:
    """Emit the core on a rank's rows of the fused tensor; returns the context, and what else the
    backward pass wants, its log-sum-exp last."""
    if b.plan.context.kind == "ulysses":
        return ulysses.forward(b, qkv, shape, sinks)
    if b.plan.context.heads == 1:
        outputs = _meeting(b, qkv, shape, sinks)
        return outputs[0], (outputs[1],)
    own = _outer(b, shape)
    source = ulysses.to_tokens(b, qkv, f"{NAME}.qkv", core_shape.bands(own), own["spread"])
    context, logsumexp = _meeting(b, source, own, sinks)
    out = b.tensor(f"{NAME}.o.all", (b.rows, core_shape.context_width(shape)))
    width = (core_shape.context_width(own),)
    ulysses.to_heads(b, context, f"{NAME}.o", width, (out, own["spread"]))
    return out, (source, context, logsumexp)


def backward(
    b: Builder, saved: tuple[str, ...], grad: str, out: str, shape: Shape, sinks: Operands
) -> None:
    """Emit the gradients of queries, keys and values, bands of `out`, from that of the context.

    `saved` are the fused tensor, and what `forward` returned. `sinks` is what the core reads and
    writes besides.
    """
    if b.plan.context.kind == "ulysses":
        ulysses.backward(b, saved, grad, out, shape, sinks)
        return
    if b.plan.context.heads == 1:
        _meeting_grad(b, saved, grad, out, shape, sinks)
        return
    _, _, source, *about = saved
    own, name = _outer(b, shape), f"{NAME}.grad"
    width = (core_shape.context_width(own),)
    d = ulysses.to_tokens(b, grad, f"{name}.o", width, own["spread"])
    d_source = b.tensor(f"{name}.heads.dqkv", b.buffers[source].shape)
    _meeting_grad(b, (source, *about), d, d_source, own, sinks)
    target = out, own["spread"]
    ulysses.to_heads(b, d_source, f"{name}.dqkv", core_shape.bands(own), target)


def _outer(b: Builder, shape: Shape) -> Shape:
    """The core of some heads, on the rows of all neighbours that traded them."""
    return {**ulysses.of_core(b, shape, ("inner_cp",)), "over": ("outer_cp",)}


def _meeting(b: Builder, qkv: str, shape: Shape, sinks: str) -> list[str]:
    """Emit the core on keys and values that meet; returns context and log-sum-exp."""
    own = _taken(b, qkv, shape, NAME)
    outputs, more = _outputs(b, qkv, shape, NAME), [sinks] if sinks else []
    if b.plan.context.kind == "all_gather":
        every = _gathered(b, own, NAME)
        b.op(NAME, "attention", [qkv, every, *more], outputs, **_work(b, qkv, shape, 1))
        return outputs
    work = _steps(b, qkv, shape, 1)
    for step, held in _around(b, own, NAME, shape):
        if not work[step]:
            continue
        found = _outputs(b, qkv, shape, f"{NAME}.{step}") if step else outputs
        reads = [qkv, held, *(() if step else more)]
        b.op(f"{NAME}.{step}", "attention", reads, found, **work[step])
        if step:
            merged = [*outputs, *found]
            b.op(f"{NAME}.{step}.merge", "merge_attention", merged, outputs, **shape)
    return outputs


def on_gathered(b: Builder, queries: str, every: str, shape: Shape) -> list[str]:
    """Emit the core on a rank's queries alone and all keys and values; returns context and
    log-sum-exp."""
    outputs = _outputs(b, queries, shape, NAME)
    b.op(NAME, "attention", [queries, every], outputs, **_alone(b, queries, shape, 1))
    return outputs


def on_gathered_grad(b: Builder, saved: Sequence[str], grad: str, shape: Shape) -> tuple[str, str]:
    """Emit the gradients behind `on_gathered`; returns those of queries and of all keys and values,
    of these queries alone."""
    queries, every, *_ = saved
    out = b.tensor(f"{NAME}.grad.dq", b.buffers[queries].shape)
    whole = b.tensor(f"{NAME}.grad.dkv.all", b.buffers[every].shape, role="gathered")
    work = _alone(b, queries, shape, 2)
    b.op(f"{NAME}.grad", "attention_grad", [grad, *saved], [out, whole], **work)
    return out, whole


def _alone(b: Builder, queries: str, shape: Shape, factor: int) -> Shape:
    return {**_work(b, queries, shape, factor), "queries_alone": True}


def _meeting_grad(
    b: Builder, saved: Sequence[str], grad: str, out: str, shape: Shape, sinks: Operands
) -> None:
    """Emit the gradients behind `_meeting` into `out`."""
    qkv, *about = saved
    name = f"{NAME}.grad"
    own = _taken(b, qkv, shape, name)
    part, (more, also) = "", sinks
    if b.plan.context.kind == "all_gather":
        every = _gathered(b, own, name)
        whole = b.tensor(f"{name}.dkv.all", b.buffers[every].shape, role="gathered")
        reads, writes = [grad, qkv, every, *about, *more], [out, whole, *also]
        b.op(name, "attention_grad", reads, writes, **_work(b, qkv, shape, 2))
        part = b.tensor(f"{name}.dkv", b.buffers[own].shape)
        axes = b.shards_of("positions")
        label, tensors = f"{name}.dkv.scatter", ([whole], [part])
        b.collective(label, "reduce_scatter", *tensors, *axes, purpose=KEYS_EXCHANGE)
    work = [] if part else _steps(b, qkv, shape, 2)
    for step, held in _around(b, own, name, shape) if work else ():
        if not work[step]:
            b.op(f"{name}.dkv.{step}.arrived", "fence", [part], [], nbytes=0)
            part = _shifted(b, part, f"{name}.dkv.{step}", shape)
            continue
        found = b.tensor(f"{name}.{step}.dkv", b.buffers[own].shape)
        reads = [grad, qkv, held, *about, *([out] if step else more)]
        writes = [out, found, *(() if step else also)]
        b.op(f"{name}.{step}", "attention_grad", reads, writes, **work[step])
        if step:
            b.op(f"{name}.{step}.add", "add", [found, part], [found])
        part = _shifted(b, found, f"{name}.dkv.{step}", shape)
    b.op(f"{name}.dkv.put", "put_keys", [part, out], [out], nbytes=2 * b.nbytes(part), **shape)


def _around(b: Builder, own: str, name: str, shape: Shape) -> Iterator[tuple[int, str]]:
    """The steps of the ring, each with the keys and values at hand. Compute waits for these, and
    only then do they go on: the next ones are on their way during a step."""
    held, steps = own, b.grid.size(*_axes(b, shape))
    for step in range(steps):
        if step:
            b.op(f"{name}.kv.{step}.arrived", "fence", [held], [], nbytes=0)
        coming = _shifted(b, held, f"{name}.kv.{step}", shape) if step < steps - 1 else ""
        yield step, held
        held = coming


def _shifted(b: Builder, held: str, label: str, shape: Shape) -> str:
    """Emit the exchange with the neighbours in the ring, beside compute; returns what comes."""
    coming = b.tensor(f"{label}.next", b.buffers[held].shape)
    axes = _axes(b, shape)
    b.collective(f"{label}.shift", RING_SHIFT, [held], [coming], *axes, purpose=KEYS_EXCHANGE)
    b.ops[-1] = replace(b.ops[-1], stream="+".join(axes))
    return coming


def _axes(b: Builder, shape: Shape) -> Axes:
    """The axes that the ring goes over."""
    axes: Axes = shape.get("over", b.shards_of("positions"))
    return axes


def _taken(b: Builder, qkv: str, shape: Shape, name: str) -> str:
    """Emit the copy of this rank's keys and values, side by side; returns its name."""
    own = b.tensor(f"{name}.kv", (b.buffers[qkv].shape[0], sum(core_shape.bands(shape)[1:])))
    b.op(f"{name}.kv", "take_keys", [qkv], [own], nbytes=2 * b.nbytes(own), **shape)
    return own


def _gathered(b: Builder, own: str, name: str) -> str:
    axes = b.shards_of("positions")
    rows, width = b.buffers[own].shape
    every = b.tensor(f"{name}.kv.all", (b.grid.size(*axes) * rows, width), role="gathered")
    b.collective(f"{name}.kv.gather", "all_gather", [own], [every], *axes, purpose=KEYS_EXCHANGE)
    return every


def _outputs(b: Builder, qkv: str, shape: Shape, name: str) -> list[str]:
    """Declare a context and its log-sum-exp."""
    rows = b.buffers[qkv].shape[0]
    context = b.tensor(f"{name}.o", (rows, core_shape.context_width(shape)))
    sequences = b.plan.mbs
    lse_shape = (sequences, shape["heads"], rows // sequences)
    return [context, b.tensor(f"{name}.lse", lse_shape, b.wide)]


def _steps(b: Builder, qkv: str, shape: Shape, factor: int) -> list[Shape]:
    """The work (`_work`) of each step of a ring, whose keys are a rank's; nothing for a step that
    has none that any query sees."""
    tokens = b.buffers[qkv].shape[0] // b.plan.mbs
    count = int(b.grid.size(*_axes(b, shape)))
    if not ring_steps.is_limited(shape):
        own = {"sequence": tokens}
        steps = [{**shape, **own, "step": step, CAUSAL: step == 0} for step in range(count)]
        return [_work(b, qkv, each, factor) for each in steps]
    sequence = b.gpt.sequence
    shape = ring_steps.cut_at_chunks(shape, count, sequence)
    whole = _work(b, qkv, shape, factor)
    pairs, every, known = ring_steps.pairs_of_ring_steps(shape, count, sequence)
    later = [whole["flops"] * own // every for own in pairs[1:]]
    flops = [whole["flops"] - sum(later), *later]
    return [
        {**whole, **of_step, "flops": own, "step": step} if own else {}
        for step, (own, of_step) in enumerate(zip(flops, known, strict=True))
    ]


def _work(b: Builder, qkv: str, shape: Shape, factor: int) -> Shape:
    """The FLOPs of queries with all keys at hand of their sequences, and how they are done."""
    rows = b.buffers[qkv].shape[0]
    flops = factor * core_shape.products_flops(shape, rows)
    how: Shape = {"context": b.plan.context.kind, "sequences": b.plan.mbs}
    if ring_steps.is_limited(shape):
        how[QUERIES] = rows * shape["heads"]
    if "documents" in shape and b.plan.context.kind == "all_gather":
        count = int(b.grid.size(*b.shards_of("positions")))
        how |= ring_steps.of_gathered(shape, count)
    return {"flops": flops, "replicas": b.grid.y, **how, **shape}
