"""Attention: a linear to queries, keys and values, the core on these, a linear out.

The core works on the fused tensor, behind norms and rotation of queries and keys.

Heads are split over x, those of queries and those of keys and values alike; what y then computes in
copies carries `replicas`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topologies.records import record
from workload.layout import NORMAL, Layout
from workload.lowering.builder import Builder
from workload.lowering.layers import core_shape, dropout, head_norm, linear, output_gate, unfused
from workload.lowering.layers.context import ring
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixer import Kept, Mixer, linear_grad
from workload.lowering.layers.recomputation import in_recomputation
from workload.models import windows
from workload.op import Part
from workload.recomputation.parts import CORE, parts_of


@record
class Core:
    """Names of what the core leaves behind: its input (rotated as it is), its output, the rest.

    `inner` is what selective recomputation drops: the log-sum-exp or, unfused, the squares. `place`
    is what dropout draws by. `norms` is what norms of queries and keys leave behind. `sinks` is
    the parameter of that name, if any. `gated` is what the last linear reads: the output behind its
    gate, or without one the output.
    """

    qkv: str
    context: str
    inner: tuple[str, ...]
    place: str
    norms: tuple[head_norm.Saved, ...] = ()
    sinks: str = ""
    gated: str = ""


def linears(b: Builder) -> dict[str, Linear]:
    """The linears before and behind the core."""
    gpt = b.gpt
    return {
        "qkv": Linear("qkv", gpt.hidden, gpt.first_bands),
        "out": Linear("out", gpt.context_width, (gpt.hidden,), transposed=True),
    }


def declare(b: Builder, owner: Part) -> None:
    """Declare the parameters, in the order in which they are used."""
    linear.declare(b, linears(b)["qkv"], owner)
    head_norm.declare(b, owner)
    declare_sinks(b, owner)
    linear.declare(b, linears(b)["out"], owner)


def declare_sinks(b: Builder, owner: Part) -> None:
    """Declare the sinks, if the model has them: a logit for each head, in the sum under its
    probabilities. Source: Xiao et al. (2309.17453), section 3.3; gpt-oss (2508.10925), section 2.2.
    """
    if b.gpt.attention.sinks:
        shape = (b.gpt.attention.heads,)
        layout = Layout(shape, shape, (b.shards_of("heads"),), starts=NORMAL)
        b.parameter(f"{owner}.sinks.w", owner, layout, sharded=False)


def forward(
    b: Builder, owner: Part, normed: str, weights: dict[str, str], *, whole: bool
) -> tuple[str, Core]:
    """Emit the mixer on the rows `normed`; returns the output's name and what is kept."""
    qkv, weights["qkv"] = linear.forward(b, linears(b)["qkv"], owner, normed)
    core, out = into_core(b, owner, qkv), ""
    if whole:
        out, weights["out"] = linear.forward(b, linears(b)["out"], owner, core.gated)
    return out, core


def backward(b: Builder, owner: Part, kept: Kept, grad: str, *, again: str) -> str:
    """Emit the gradients from `grad`, that of the output; returns that of the normalised rows."""
    normed, core, weights = kept
    d = linear_grad(b, linears(b)["out"], owner, core.gated, weights, grad)
    if CORE in parts_of(again):
        core = core_again(b, core)
    d = core_grad(b, core, d)
    return linear_grad(b, linears(b)["qkv"], owner, normed, weights, d)


def into_core(b: Builder, owner: Part, qkv: str) -> Core:
    """Emit the core, behind norms and rotation, if any."""
    norms = head_norm.forward(b, owner, qkv)
    _rotate(b, "rope", "rope", qkv)
    sinks = f"{owner}.sinks.w" if b.gpt.attention.sinks else ""
    core = _core(b, f"{owner}.attention", qkv, sinks)
    return replace(core, norms=norms, gated=output_gate.forward(b, qkv, core.context))


def core_again(b: Builder, kept: Core) -> Core:
    """Emit the core once more, as a block of its own within the backward pass.

    As with Megatron's checkpoint around the core, the first context stays for the next linear's
    gradient, and the gradient of the core works on the second.
    """
    with in_recomputation(b):
        core = _core(b, kept.place, kept.qkv, kept.sinks)
    return replace(core, norms=kept.norms, gated=kept.gated)


def core_grad(b: Builder, core: Core, grad: str) -> str:
    """Emit the gradient of the fused tensor from that of the context."""
    shape, name = shape_of(b, core.place), "attention"
    out = b.tensor(f"{name}.dqkv", b.buffers[core.qkv].shape)
    grad = output_gate.backward(b, core.qkv, core.context, grad, out)
    more, also = list[str](), list[str]()
    if core.sinks:
        old, also = b.grad_writes(core.sinks, b.block.micro_batch)
        more, shape["first"] = [core.sinks, *old], b.starts
    if b.plan.training.attention == "unfused":
        unfused.backward(b, name, (core.qkv, *core.inner), grad, out, shape)
    elif b.plan.cp > 1:
        saved = core.qkv, core.context, *core.inner
        ring.backward(b, saved, grad, out, shape, (more, also))
    else:
        reads, writes = [grad, core.qkv, core.context, *core.inner, *more], [out, *also]
        how = {"flops": 2 * core_shape.products_flops(shape, b.rows), "replicas": b.grid.y, **shape}
        b.op(f"{name}.grad", "attention_grad", reads, writes, **how)
    _rotate(b, "rope.grad", "rope_grad", out)
    head_norm.backward(b, core.norms, out)
    return out


def _core(b: Builder, place: str, qkv: str, sinks: str) -> Core:
    shape = shape_of(b, place)
    if b.plan.training.attention == "unfused":
        return Core(qkv, *unfused.forward(b, place, qkv, shape), place)
    if b.plan.cp > 1:
        return Core(qkv, *ring.forward(b, qkv, shape, sinks), place, sinks=sinks)
    context = b.tensor("attention.o", (b.rows, b.gpt.context_width // b.grid.tp))
    lse_shape = core_shape.sums_shape(shape, b.rows)
    logsumexp = b.tensor("attention.lse", lse_shape, b.wide)
    b.op(
        "attention",
        "attention",
        [qkv, *([sinks] if sinks else [])],
        [context, logsumexp],
        flops=core_shape.products_flops(shape, b.rows),
        replicas=b.grid.y,
        **shape,
    )
    return Core(qkv, context, (logsumexp,), place, sinks=sinks)


def _rotate(b: Builder, name: str, kind: str, qkv: str) -> None:
    """Emit the rotation of queries and keys in place; values are neither read nor written. Latent
    attention has rotated them already."""
    if b.gpt.positions == "rope" and not b.gpt.latent.kv_rank:
        shape = shape_of(b)
        turned = b.rows * (shape["heads"] + shape["kv_heads"]) * shape["width"]
        nbytes = 2 * turned * b.item_bytes()
        how = {"base": b.gpt.attention.rope_base, "scaling": b.gpt.attention.rope_scaling, **shape}
        b.op(name, kind, [qkv], [qkv], nbytes=nbytes, **how)


def shape_of(b: Builder, place: str = "") -> dict[str, Any]:
    """One rank's heads of queries, and of keys and values; a head's width, and that of its values
    where it is another; the sequence. Of a core, by its place, its window and documents too.

    A flash kernel drops probabilities itself, so it must know of their place.
    """
    gpt, x = b.gpt, b.grid.tp
    shape: dict[str, Any] = {
        "heads": gpt.attention.heads // x,
        "kv_heads": gpt.key_heads // x,
        "width": gpt.width,
    }
    if gpt.latent.kv_rank:
        shape["value_width"] = gpt.context_width // gpt.attention.heads
    shape |= {"sequence": gpt.sequence, "alibi": gpt.positions == "alibi"}
    if place and (window := windows.window_of(gpt, b.block.part.layer)):
        shape["window"] = window
    if place and (document := windows.document_of(gpt)):  # attention as of so many more sequences
        shape |= {"sequence": document, "document": document}
    if place and (packing := windows.packing_of(gpt)):
        shape["documents"] = packing
    if place and gpt.attention.sinks:
        shape["sinks"] = True
    drops = dropout.how(b, place) if place and b.plan.training.attention == "flash" else {}
    return {**shape, **drops}


MIXER = Mixer("norm1", "out", declare, forward, backward, linears)
