"""One transformer layer: attention and MLP between residual additions, forward and backward.

The residual stream is m x h/y, in copies over x. What stands between the linears of attention and
of the MLP is in attention.py and mlp.py.
"""

from __future__ import annotations

from topologies.records import record
from workload.lowering.builder import Builder
from workload.lowering.layers import (
    attention,
    dropout,
    head_norm,
    latent,
    linear,
    mlp,
    norm,
)
from workload.lowering.layers.attention import Core
from workload.lowering.layers.further import latent_context, once_more
from workload.lowering.layers.hybrid import mixer_layer
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixture import experts
from workload.models import moe
from workload.op import FEED_FORWARD, ROUTING, Part
from workload.recomputation.parts import parts_of


@record
class Saved:
    """Names of what a layer's forward leaves behind for its backward."""

    source: str
    norm1: tuple[str, str]
    core: Core
    middle: str
    norm2: tuple[str, str]
    up: str
    activation: str
    masks: tuple[str, str]
    weights: dict[str, str]
    experts: experts.Saved | None = None
    latent: latent.Saved | None = None


AnySaved = Saved | mixer_layer.Saved


def linears(b: Builder) -> dict[str, Linear]:
    """The layer's four linears: normal, transposed, normal, transposed; with experts or latent
    attention others stand in place of some."""
    h, f = b.gpt.hidden, b.gpt.ffn
    return {
        "qkv": Linear("qkv", h, b.gpt.bands),
        "out": Linear("out", b.gpt.context_width, (h,), transposed=True),
        "up": Linear("up", h, b.gpt.up_bands),
        "down": Linear("down", f, (h,), transposed=True),
    }


def declare(b: Builder, owner: Part) -> None:
    """Declare a layer's parameters, in the order in which they are used."""
    if mixer_layer.is_one(b, owner):
        mixer_layer.declare(b, owner)
        return
    every = linears(b)
    norm.declare(b, f"{owner}.norm1", owner)
    if b.gpt.kv_rank:
        latent.declare(b, owner)
    else:
        linear.declare(b, every["qkv"], owner)
        head_norm.declare(b, owner)
    attention.declare(b, owner)
    linear.declare(b, every["out"], owner)
    norm.declare(b, f"{owner}.norm2", owner)
    if moe.has_experts(b.gpt, owner.layer):
        experts.declare(b, owner)
        return
    linear.declare(b, every["up"], owner)
    linear.declare(b, every["down"], owner)


def forward(b: Builder, owner: Part, source: str, *, whole: bool = True) -> tuple[str, AnySaved]:
    """Emit the layer on the residual stream `source`; returns its output and what it saved.

    A layer that is not `whole` ends before its last linear, which has no output then.
    """
    if mixer_layer.is_one(b, owner):
        return mixer_layer.forward(b, owner, source, whole=whole)
    every = linears(b)
    normed1, stats1 = norm.forward(b, "norm1", f"{owner}.norm1", source)
    weights, own = dict[str, str](), None
    qkv, led = _into_core(b, owner, normed1, weights)
    core = _core(b, owner, qkv, led)
    middle, weights["out"] = linear.forward(b, every["out"], owner, core.context)
    mask1 = _add(b, owner, "out", middle, source)
    with b.within(ROUTING):
        normed2, stats2 = norm.forward(b, "norm2", f"{owner}.norm2", middle)
    up, activation, mask2 = "", "", ""
    with b.within(FEED_FORWARD):
        if moe.has_experts(b.gpt, owner.layer):
            out, own = experts.forward(b, owner, normed2, whole=whole)
        else:
            up, weights["up"] = linear.forward(b, every["up"], owner, normed2)
            activation, out = mlp.forward(b, up), ""
            up = mlp.kept(b, up)
            if whole:
                out, weights["down"] = linear.forward(b, every["down"], owner, activation)
        if whole:
            mask2 = _add(b, owner, "down", out, middle)
    saved = Saved(
        source,
        (normed1, stats1),
        core,
        middle,
        (normed2, stats2),
        up,
        activation,
        (mask1, mask2),
        weights,
        own,
        led,
    )
    return out, saved


def _into_core(
    b: Builder, owner: Part, normed: str, weights: dict[str, str]
) -> tuple[str, latent.Saved | None]:
    """Emit what makes queries, keys and values; returns them and what latent attention saved."""
    if b.gpt.kv_rank:
        return latent.forward(b, owner, normed)
    qkv, weights["qkv"] = linear.forward(b, linears(b)["qkv"], owner, normed)
    return qkv, None


def _core(b: Builder, owner: Part, qkv: str, led: latent.Saved | None) -> Core:
    if led is not None and latent_context.applies(b):
        return latent_context.forward(b, owner, qkv, led)
    return attention.forward(b, owner, qkv)


def _add(b: Builder, owner: Part, name: str, out: str, source: str) -> str:
    """Emit the dropout of a linear's output and the addition to the stream; returns the mask."""
    mask = dropout.forward(b, name, f"{owner}.{name}", out)
    b.op(f"{name}.add", "add", [out, source], [out])
    return mask


def backward(b: Builder, owner: Part, saved: AnySaved, grad: str, *, again: str) -> str:
    """Emit the gradients of a layer from `grad`, that of its output; returns its input's.

    `again` says what of the layer is recomputed: after "full" the weight tiles are still at hand,
    since the recomputation gathered them; parts of a layer, or its core, run here once more.
    """
    if isinstance(saved, mixer_layer.Saved):
        return mixer_layer.backward(b, owner, saved, grad, again=again)
    held, parts = again == "full", parts_of(again)

    def linear_back(name: str, source: str, upstream: str) -> str:
        own, weight = linears(b)[name], saved.weights.get(name, "") if held else ""
        return linear.backward(b, own, owner, source=source, weight=weight, grad=upstream)

    saved = once_more.mlp_half(b, owner, saved, linears(b)["up"], parts)
    with b.within(FEED_FORWARD):
        d = dropout.backward(b, "down", saved.masks[1], grad)
        if saved.experts is not None:
            d = experts.backward(b, owner, saved.norm2[0], saved.experts, d, held=held)
        else:
            d = linear_back("down", saved.activation, d)
            d = mlp.backward(b, saved.up, d)
            d = linear_back("up", saved.norm2[0], d)
    with b.within(ROUTING):
        norm.backward(b, "norm2", f"{owner}.norm2", (saved.middle, saved.norm2[1]), d)
    b.op("out.add.grad", "add", [d, grad], [d])
    middle = d
    d = dropout.backward(b, "out", saved.masks[0], middle)
    d = linear_back("out", saved.core.context, d)
    saved = once_more.attention_half(b, owner, saved, parts)
    if saved.latent is not None and latent_context.applies(b):
        into = saved.core, saved.latent, saved.norm1[0]
        d = latent_context.backward(b, owner, *into, d, held=held)
    elif saved.latent is not None:
        d = attention.backward(b, saved.core, d)
        d = latent.backward(b, owner, saved.latent, saved.norm1[0], d, held=held)
    else:
        d = attention.backward(b, saved.core, d)
        d = linear_back("qkv", saved.norm1[0], d)
    norm.backward(b, "norm1", f"{owner}.norm1", (saved.source, saved.norm1[1]), d)
    b.op("add.grad", "add", [d, middle], [d])
    return d
