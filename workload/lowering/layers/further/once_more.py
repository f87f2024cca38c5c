"""Parts of a layer that run once more within its backward pass.

Each part is kept by its inputs alone and runs where the gradient of what follows it arrives.
Source: Korthikanti et al. (2205.05198), section 5; NVIDIA/Megatron-LM,
megatron/core/tensor_parallel/random.py, CheckpointWithoutOutput, and megatron/core/transformer,
transformer_layer.py, moe/moe_layer.py, moe/experts.py and multi_latent_attention.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from workload.lowering.builder import Builder
from workload.lowering.layers import attention, latent, linear, mlp, norm
from workload.lowering.layers.further.recomputation import in_recomputation
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixture import experts
from workload.op import FEED_FORWARD, ROUTING, Part
from workload.recomputation.parts import CORE, EXPERTS, MLP, NORMS, UP

if TYPE_CHECKING:
    from workload.lowering.layers.layer import Saved

Parts = frozenset[str]


def mlp_half(b: Builder, owner: Part, saved: Saved, up: Linear, parts: Parts) -> Saved:
    """Emit what runs again of the MLP, or the experts, and the norm before; `up` is its first
    linear. Returns what the backward pass needs."""
    with in_recomputation(b):
        if NORMS in parts:
            with b.within(ROUTING):
                normed = norm.forward(b, "norm2", f"{owner}.norm2", saved.middle)
            saved = replace(saved, norm2=normed)
        own = saved.experts
        with b.within(FEED_FORWARD):
            if own is None and MLP in parts:
                out, _ = linear.forward(b, up, owner, saved.norm2[0])
                saved = replace(saved, up=out, activation=mlp.forward(b, out))
            elif own is not None and EXPERTS in parts:
                _, own = experts.forward(b, owner, saved.norm2[0], whole=False)
            elif own is not None:
                own = experts.again(b, owner, saved.norm2[0], own, parts)
    return replace(saved, experts=own)


def attention_half(b: Builder, owner: Part, saved: Saved, parts: Parts) -> Saved:
    """Emit what runs again of attention and the norm before; returns what the backward pass
    needs."""
    with in_recomputation(b):
        if NORMS in parts:
            normed = norm.forward(b, "norm1", f"{owner}.norm1", saved.source)
            led = saved.latent and latent.behind(saved.latent, normed[0])
            saved = replace(saved, norm1=normed, latent=led)
        if UP in parts and saved.latent is not None:
            qkv, led = latent.again(b, owner, saved.latent)
            saved = replace(saved, core=replace(saved.core, qkv=qkv), latent=led)
    return replace(saved, core=attention.again(b, saved.core)) if CORE in parts else saved
