"""Attention, an MLP or experts as the one mixer of a layer."""

from __future__ import annotations

from workload.lowering.builder import Builder
from workload.lowering.layers import attention, head_norm, linear, mlp
from workload.lowering.layers.attention import Core
from workload.lowering.layers.further.recomputation import in_recomputation
from workload.lowering.layers.hybrid.mixer import Kept, Mixer
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixture import experts
from workload.op import FEED_FORWARD, ROUTING, Part
from workload.recomputation import parts


def linears(b: Builder) -> dict[str, Linear]:
    """The two linears of attention, and those of an MLP."""
    gpt = b.gpt
    return {
        "qkv": Linear("qkv", gpt.hidden, gpt.bands),
        "out": Linear("out", gpt.context_width, (gpt.hidden,), transposed=True),
        "up": Linear("up", gpt.hidden, gpt.up_bands),
        "down": Linear("down", gpt.ffn, (gpt.hidden,), transposed=True),
    }


def _declare_attention(b: Builder, owner: Part) -> None:
    linear.declare(b, linears(b)["qkv"], owner)
    head_norm.declare(b, owner)
    linear.declare(b, linears(b)["out"], owner)


def _attention(
    b: Builder, owner: Part, normed: str, weights: dict[str, str], *, whole: bool
) -> tuple[str, Core]:
    every = linears(b)
    qkv, weights["qkv"] = linear.forward(b, every["qkv"], owner, normed)
    core, out = attention.forward(b, owner, qkv), ""
    if whole:
        out, weights["out"] = linear.forward(b, every["out"], owner, core.context)
    return out, core


def _attention_grad(b: Builder, owner: Part, kept: Kept, grad: str, *, again: str) -> str:
    normed, core, weights = kept
    d = _linear_grad(b, owner, "out", core.context, weights, grad)
    core = attention.again(b, core) if parts.CORE in parts.parts_of(again) else core
    d = attention.backward(b, core, d)
    return _linear_grad(b, owner, "qkv", normed, weights, d)


def _declare_mlp(b: Builder, owner: Part) -> None:
    for name in ("up", "down"):
        linear.declare(b, linears(b)[name], owner)


def _mlp(
    b: Builder, owner: Part, normed: str, weights: dict[str, str], *, whole: bool
) -> tuple[str, tuple[str, str]]:
    up, weights["up"] = linear.forward(b, linears(b)["up"], owner, normed)
    activation, out = mlp.forward(b, up), ""
    up = mlp.kept(b, up)
    if whole:
        out, weights["down"] = linear.forward(b, linears(b)["down"], owner, activation)
    return out, (up, activation)


def _mlp_grad(b: Builder, owner: Part, kept: Kept, grad: str, *, again: str) -> str:
    normed, (up, activation), weights = kept
    if parts.MLP in parts.parts_of(again):
        with in_recomputation(b):
            up, _ = linear.forward(b, linears(b)["up"], owner, normed)
            activation = mlp.forward(b, up)
    d = mlp.backward(b, up, _linear_grad(b, owner, "down", activation, weights, grad))
    return _linear_grad(b, owner, "up", normed, weights, d)


def _experts(
    b: Builder, owner: Part, normed: str, weights: dict[str, str], *, whole: bool
) -> tuple[str, experts.Saved]:
    return experts.forward(b, owner, normed, whole=whole)


def _experts_grad(b: Builder, owner: Part, kept: Kept, grad: str, *, again: str) -> str:
    normed, saved, _ = kept
    named = parts.parts_of(again)
    if named:
        with in_recomputation(b):
            if parts.EXPERTS in named:
                _, saved = experts.forward(b, owner, normed, whole=False)
            else:
                saved = experts.again(b, owner, normed, saved, named)
    return experts.backward(b, owner, normed, saved, grad, held=again == "full")


def _linear_grad(
    b: Builder, owner: Part, name: str, source: str, weights: dict[str, str], grad: str
) -> str:
    weight = weights.get(name, "")
    return linear.backward(b, linears(b)[name], owner, source=source, weight=weight, grad=grad)


ATTENTION = Mixer("norm1", "out", _declare_attention, _attention, _attention_grad)
MLP = Mixer("norm2", "down", _declare_mlp, _mlp, _mlp_grad, ROUTING, FEED_FORWARD)
EXPERTS = Mixer("norm2", "down", experts.declare, _experts, _experts_grad, ROUTING, FEED_FORWARD)
