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
Source: Liu et al. (Ring Attention, 2310.01889); NVIDIA/TransformerEngine,
attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVP2P.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from workload.lowering.builder import Builder
from workload.lowering.layers import core_shape, ulysses
from workload.op import CAUSAL, KEYS_EXCHANGE, RING_SHIFT

Shape = dict[str, Any]
NAME = "attention"


def forward(b: Builder, qkv: str, shape: Shape) -> tuple[str, tuple[str, ...]]:
    """Emit the core on a rank's rows of the fused tensor; returns context and log-sum-exp."""
    if b.plan.context_kind == "ulysses":
        return ulysses.forward(b, qkv, shape)
    own = _taken(b, qkv, shape, NAME)
    outputs = _outputs(b, shape, NAME)
    if b.plan.context_kind == "all_gather":
        every = _gathered(b, own, NAME)
        b.op(NAME, "attention", [qkv, every], outputs, **_work(b, shape, 1))
        return outputs[0], (outputs[1],)
    for step, held in _around(b, own, NAME):
        found = _outputs(b, shape, f"{NAME}.{step}") if step else outputs
        b.op(f"{NAME}.{step}", "attention", [qkv, held], found, **_step(b, shape, 1, step))
        if step:
            merged = [*outputs, *found]
            b.op(f"{NAME}.{step}.merge", "merge_attention", merged, outputs, **shape)
    return outputs[0], (outputs[1],)


def backward(b: Builder, saved: tuple[str, ...], grad: str, out: str, shape: Shape) -> None:
    """Emit the gradients of queries, keys and values, bands of `out`, from that of the context.

    `saved` are the fused tensor, and what `forward` returned.
    """
    if b.plan.context_kind == "ulysses":
        ulysses.backward(b, saved, grad, out, shape)
        return
    qkv, *about = saved
    name = f"{NAME}.grad"
    own = _taken(b, qkv, shape, name)
    part = ""
    if b.plan.context_kind == "all_gather":
        every = _gathered(b, own, name)
        whole = b.tensor(f"{name}.dkv.all", b.buffers[every].shape, role="gathered")
        reads = [grad, qkv, every, *about]
        b.op(name, "attention_grad", reads, [out, whole], **_work(b, shape, 2))
        part = b.tensor(f"{name}.dkv", b.buffers[own].shape)
        axes = b.shards_of("positions")
        label, tensors = f"{name}.dkv.scatter", ([whole], [part])
        b.collective(label, "reduce_scatter", *tensors, *axes, purpose=KEYS_EXCHANGE)
    for step, held in _around(b, own, name) if not part else ():
        found = b.tensor(f"{name}.{step}.dkv", b.buffers[own].shape)
        reads = [grad, qkv, held, *about, *([out] if step else [])]
        how = _step(b, shape, 2, step)
        b.op(f"{name}.{step}", "attention_grad", reads, [out, found], **how)
        if step:
            b.op(f"{name}.{step}.add", "add", [found, part], [found])
        part = _shifted(b, found, f"{name}.dkv.{step}")
    b.op(f"{name}.dkv.put", "put_keys", [part, out], [out], nbytes=2 * b.nbytes(part), **shape)


def _around(b: Builder, own: str, name: str) -> Iterator[tuple[int, str]]:
    """The steps of the ring, each with the keys and values at hand. Compute waits for these, and
    only then do they go on: the next ones are on their way during a step."""
    held, steps = own, b.grid.size(*b.shards_of("positions"))
    for step in range(steps):
        if step:
            b.op(f"{name}.kv.{step}.arrived", "fence", [held], [], nbytes=0)
        coming = _shifted(b, held, f"{name}.kv.{step}") if step < steps - 1 else ""
        yield step, held
        held = coming


def _shifted(b: Builder, held: str, label: str) -> str:
    """Emit the exchange with the neighbours in the ring, beside compute; returns what comes."""
    coming = b.tensor(f"{label}.next", b.buffers[held].shape)
    axes = b.shards_of("positions")
    b.collective(f"{label}.shift", RING_SHIFT, [held], [coming], *axes, purpose=KEYS_EXCHANGE)
    b.ops[-1] = replace(b.ops[-1], stream="+".join(axes))
    return coming


def _taken(b: Builder, qkv: str, shape: Shape, name: str) -> str:
    """Emit the copy of this rank's keys and values, side by side; returns its name."""
    own = b.tensor(f"{name}.kv", (b.rows, sum(core_shape.bands(shape)[1:])))
    b.op(f"{name}.kv", "take_keys", [qkv], [own], nbytes=2 * b.nbytes(own), **shape)
    return own


def _gathered(b: Builder, own: str, name: str) -> str:
    axes = b.shards_of("positions")
    rows, width = b.buffers[own].shape
    every = b.tensor(f"{name}.kv.all", (b.grid.size(*axes) * rows, width), role="gathered")
    b.collective(f"{name}.kv.gather", "all_gather", [own], [every], *axes, purpose=KEYS_EXCHANGE)
    return every


def _outputs(b: Builder, shape: Shape, name: str) -> list[str]:
    """Declare a context and its log-sum-exp."""
    context = b.tensor(f"{name}.o", (b.rows, core_shape.context_width(shape)))
    lse_shape = (b.plan.micro_batch, shape["heads"], b.tokens)
    return [context, b.tensor(f"{name}.lse", lse_shape, b.wide)]


def _step(b: Builder, shape: Shape, factor: int, step: int) -> Shape:
    """The same for one step of a ring, whose keys are a rank's."""
    how = {"sequence": b.tokens, "step": step, CAUSAL: step == 0}
    return _work(b, {**shape, **how}, factor)


def _work(b: Builder, shape: Shape, factor: int) -> Shape:
    """The FLOPs of queries with all keys at hand of their sequences, and how they are done."""
    flops = factor * core_shape.products_flops(shape, b.rows)
    how = {"context": b.plan.context_kind, "sequences": b.plan.micro_batch}
    return {"flops": flops, "replicas": b.grid.y, **how, **shape}
