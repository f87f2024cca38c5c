"""An MLP: a linear up, GELU, or SwiGLU on gate and up side by side, and a linear down.

With `fp8_swiglu_input` what SwiGLU reads is kept for its gradient in 8 bits, each row with a scale
for each block of columns, and cast back there. Sources: DeepSeek-V3 (2412.19437), section 3.3.3,
"Low-Precision Activation"; NVIDIA/Megatron-LM, --activation-func-fp8-input-store. Not modelled: the
cast inside SwiGLU's kernel; Megatron-LM's has no scales.
"""

from __future__ import annotations

from workload.lowering.builder import Builder
from workload.lowering.layers import linear
from workload.lowering.layers.linear import Linear
from workload.lowering.layers.mixer import Kept, Mixer, linear_grad
from workload.lowering.layers.mixers.narrow_rows import AS_KEPT, narrow, wide
from workload.lowering.layers.recomputation import in_recomputation
from workload.op import FEED_FORWARD, ROUTING, Part
from workload.recomputation import parts


def linears(b: Builder) -> dict[str, Linear]:
    """The linears up and down."""
    gpt = b.gpt
    return {
        "up": Linear("up", gpt.hidden, gpt.up_bands),
        "down": Linear("down", gpt.ffn, (gpt.hidden,), transposed=True),
    }


def declare(b: Builder, owner: Part) -> None:
    """Declare the parameters, in the order in which they are used."""
    for own in linears(b).values():
        linear.declare(b, own, owner)


def forward(
    b: Builder, owner: Part, normed: str, weights: dict[str, str], *, whole: bool
) -> tuple[str, tuple[str, str]]:
    """Emit the mixer on the rows `normed`; returns the output's name and what is kept: the
    activation's input and output."""
    up, weights["up"] = linear.forward(b, linears(b)["up"], owner, normed)
    activation, out = activate(b, up), ""
    up = kept(b, up)
    if whole:
        out, weights["down"] = linear.forward(b, linears(b)["down"], owner, activation)
    return out, (up, activation)


def backward(b: Builder, owner: Part, saved: Kept, grad: str, *, again: str) -> str:
    """Emit the gradients from `grad`, that of the output; returns that of the normalised rows."""
    normed, (up, activation), weights = saved
    if parts.MLP in parts.parts_of(again):
        with in_recomputation(b):
            up, _ = linear.forward(b, linears(b)["up"], owner, normed)
            activation = activate(b, up)
    d = linear_grad(b, linears(b)["down"], owner, activation, weights, grad)
    d = activation_grad(b, up, d)
    return linear_grad(b, linears(b)["up"], owner, normed, weights, d)


def activate(b: Builder, up: str, scores: str = "", *, name: str = "") -> str:
    """Emit the activation of the first linear's output; returns the second linear's input.

    With `scores`, one for each row, the rows are multiplied by them: kind "weighted_gelu" or
    "weighted_swiglu". `name` tells an MLP beside another from it.
    """
    kind = b.gpt.activation
    (rows, width), counted = b.buffers[up].shape, b.buffers[up].rows_of
    out = b.tensor(f"{name}{kind}.o", (rows, width // b.gpt.mlp_bands), rows_of=counted)
    if scores:
        b.op(kind, f"weighted_{kind}", [up, scores], [out])
    else:
        b.op(f"{name}{kind}", kind, [up], [out])
    return out


def kept(b: Builder, up: str, *, name: str = "") -> str:
    """Emit the cast of the activation's input into what is kept of it; returns that."""
    return narrow(b, f"{name}swiglu.kept", up, AS_KEPT) if b.plan.training.fp8_swiglu_input else up


def at_hand(b: Builder, up: str, columns: int, *, name: str = "") -> str:
    """Emit the cast back of what was kept of so many columns; returns the activation's input."""
    if not b.plan.training.fp8_swiglu_input or b.buffers[up].dtype != "fp8":
        return up
    return wide(b, f"{name}swiglu.at_hand", up, columns, AS_KEPT)


def activation_grad(b: Builder, up: str, grad: str, *, name: str = "") -> str:
    """Emit the gradient of the activation's input: in place where it is as wide as `grad`."""
    kind = b.gpt.activation
    out = grad
    up = at_hand(b, up, b.gpt.mlp_bands * b.buffers[grad].shape[1], name=name)
    if b.gpt.mlp_bands > 1:
        out = b.tensor(f"{name}{kind}.di", b.buffers[up].shape)
    b.op(f"{name}{kind}.grad", f"{kind}_grad", [grad, up], [out])
    return out


def weighted_grad(b: Builder, up: str, scores: str, grad: str) -> tuple[str, str]:
    """Emit the gradients of the activation's input and of the rows' scores, where x splits the
    width each rank's own part of the latter."""
    kind = b.gpt.activation
    up = at_hand(b, up, b.gpt.mlp_bands * b.buffers[grad].shape[1])
    own, weighing = b.buffers[up], b.buffers[scores]
    out = b.tensor(f"{kind}.di", own.shape, rows_of=own.rows_of)
    how = {"dtype": weighing.dtype, "rows_of": own.rows_of}
    of_scores = b.tensor("scores.grad", weighing.shape, **how)
    b.op(f"{kind}.grad", f"weighted_{kind}_grad", [grad, up, scores], [out, of_scores])
    return out, of_scores


MIXER = Mixer("norm2", "down", declare, forward, backward, linears, ROUTING, FEED_FORWARD)
