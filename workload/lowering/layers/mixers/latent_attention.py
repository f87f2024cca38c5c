"""Latent attention: queries, keys and values from a few numbers for each token, the core on these,
a linear out."""

from __future__ import annotations

from dataclasses import replace

from workload.lowering.builder import Builder
from workload.lowering.layers import linear
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixer import Kept, Mixer, linear_grad
from workload.lowering.layers.mixers import attention, context_latents, latent_projections
from workload.lowering.layers.mixers.attention import Core
from workload.lowering.layers.recomputation import in_recomputation
from workload.op import Part
from workload.recomputation.parts import CORE, FULL, UP, parts_of

Inner = tuple[Core, latent_projections.Saved]


def _out(b: Builder) -> Linear:
    """The linear behind the core."""
    return attention.linears(b)["out"]


def _products(b: Builder) -> dict[str, Linear]:
    """The linears, each one product."""
    into = latent_projections.linears(b).items()
    return {"out": _out(b), **{name: replace(each, bands=(each.n,)) for name, each in into}}


def declare(b: Builder, owner: Part) -> None:
    """Declare the parameters, in the order in which they are used."""
    latent_projections.declare(b, owner)
    attention.declare_sinks(b, owner)
    linear.declare(b, _out(b), owner)


def forward(
    b: Builder, owner: Part, normed: str, weights: dict[str, str], *, whole: bool
) -> tuple[str, Inner]:
    """Emit the mixer on the rows `normed`; returns the output's name and what is kept."""
    qkv, led = latent_projections.forward(b, owner, normed)
    if context_latents.applies(b):
        core = context_latents.forward(b, owner, qkv, led)
    else:
        core = attention.into_core(b, owner, qkv)
    out = ""
    if whole:
        out, weights["out"] = linear.forward(b, _out(b), owner, core.context)
    return out, (core, led)


def backward(b: Builder, owner: Part, kept: Kept, grad: str, *, again: str) -> str:
    """Emit the gradients from `grad`, that of the output; returns that of the normalised rows."""
    normed, (core, led), weights = kept
    held, parts = again == FULL, parts_of(again)
    d = linear_grad(b, _out(b), owner, core.context, weights, grad)
    led = latent_projections.behind(led, normed)
    if UP in parts:
        with in_recomputation(b):
            qkv, led = latent_projections.again(b, owner, led)
        core = replace(core, qkv=qkv)
    if CORE in parts:
        core = attention.core_again(b, core)
    if context_latents.applies(b):
        return context_latents.backward(b, owner, core, led, normed, d, held=held)
    d = attention.core_grad(b, core, d)
    return latent_projections.backward(b, owner, led, normed, d, held=held)


MIXER = Mixer("norm1", "out", declare, forward, backward, _products)
