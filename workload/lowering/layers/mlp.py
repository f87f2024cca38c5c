"""What stands between the MLP's two linears: GELU, or SwiGLU on gate and up side by side."""

from __future__ import annotations

from workload.lowering.builder import Builder


def forward(b: Builder, up: str) -> str:
    """Emit the activation of the first linear's output; returns the second linear's input."""
    kind = b.gpt.activation
    rows, width = b.buffers[up].shape
    out = b.tensor(f"{kind}.o", (rows, width // len(b.gpt.up_bands)))
    b.op(kind, kind, [up], [out])
    return out


def backward(b: Builder, up: str, grad: str) -> str:
    """Emit the gradient of the activation's input: in place where it is as wide as `grad`."""
    kind = b.gpt.activation
    out = grad
    if len(b.gpt.up_bands) > 1:
        out = b.tensor(f"{kind}.di", b.buffers[up].shape)
    b.op(f"{kind}.grad", f"{kind}_grad", [grad, up], [out])
    return out
