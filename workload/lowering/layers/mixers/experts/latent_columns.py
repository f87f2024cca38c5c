"""Experts on fewer columns than the residual stream has: a linear makes these of each token's row
before it is sent, and another one the stream's columns of what was combined.

The router and the MLP that all tokens pass work on the stream. Ranks of x have copies of both
linears; with sequence parallelism each puts its own rows through them.
Source: Megatron-Core, transformer/moe/moe_layer.py (`moe_latent_size`, `fc1_latent_proj`,
`fc2_latent_proj`); NVIDIA, Nemotron 3 Super (2604.12374), LatentMoE.
"""

from __future__ import annotations

from workload.lowering.builder import Builder
from workload.lowering.layers import copied_linear
from workload.lowering.layers.linear import Linear
from workload.op import MIXER, Part

TO_LATENT, FROM_LATENT = NAMES = "fc1_latent_proj", "fc2_latent_proj"


def linears(b: Builder) -> dict[str, Linear]:
    """The two linears, if the model has them."""
    hidden, latent = b.gpt.hidden, b.gpt.moe.expert_latent
    if not latent:
        return {}
    return {
        TO_LATENT: Linear(TO_LATENT, hidden, (latent,)),
        FROM_LATENT: Linear(FROM_LATENT, latent, (hidden,), transposed=True),
    }


def declare(b: Builder, owner: Part) -> None:
    """Declare the weights of both."""
    for each in linears(b).values():
        copied_linear.declare(b, each, owner)


def to_latent(b: Builder, owner: Part, normed: str, weights: dict[str, str]) -> str:
    """Emit the columns that experts work on, if they are others than the stream's; returns the rows
    that have them, (rows, expert_latent) of `normed` (rows, hidden), and notes the gathered weight
    in `weights`."""
    if not b.gpt.moe.expert_latent:
        return normed
    with b.within(MIXER):
        out, weights[TO_LATENT] = copied_linear.forward(b, linears(b)[TO_LATENT], owner, normed)
    return out


def from_latent(b: Builder, owner: Part, combined: str, weights: dict[str, str]) -> str:
    """Emit the stream's columns of what experts left, (rows, hidden) of `combined` (rows,
    expert_latent), in a model that has both linears; returns their name, and notes the weight."""
    own = linears(b)[FROM_LATENT]
    with b.within(MIXER):
        out, weights[FROM_LATENT] = copied_linear.forward(b, own, owner, combined)
    return out


def to_latent_grad(b: Builder, owner: Part, normed: str, weights: dict[str, str], grad: str) -> str:
    """Emit the gradients of what makes the columns; returns that of the rows `normed`."""
    if not b.gpt.moe.expert_latent:
        return grad
    own, weight = linears(b)[TO_LATENT], weights[TO_LATENT]
    with b.within(MIXER):
        return copied_linear.backward(b, own, owner, normed, weight, grad)


def from_latent_grad(
    b: Builder, owner: Part, combined: str, weights: dict[str, str], grad: str
) -> str:
    """Emit the gradients of the way back to the stream; returns that of what was combined."""
    if not b.gpt.moe.expert_latent:
        return grad
    own, weight = linears(b)[FROM_LATENT], weights[FROM_LATENT]
    with b.within(MIXER):
        return copied_linear.backward(b, own, owner, combined, weight, grad)
