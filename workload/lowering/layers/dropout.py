"""Dropout, with masks of one byte per element kept for the backward pass.

Which elements are dropped depends on their place in the whole tensor of the step's batch alone
(executor/kernels/dropout.py says how), so every plan drops the same ones.
Source: where Megatron-LM has dropout, and what Korthikanti et al. (2205.05198) count of it.
"""

from __future__ import annotations

from typing import Any

from workload.lowering.builder import Builder


def how(b: Builder, place: str) -> dict[str, Any]:
    """What a kernel that drops must know; nothing where the model has no dropout.

    `place` names the tensor within the model, `rows` counts a micro-batch's.
    """
    if not b.gpt.dropout:
        return {}
    known = {"rate": b.gpt.dropout, "place": place, "rows": b.rows}
    return known | ({"sequence": b.gpt.sequence} if b.plan.cp > 1 else {})


def forward(b: Builder, name: str, place: str, source: str, out: str = "") -> str:
    """Emit the dropout of `source`, in place or into `out`; returns the mask's name, if any."""
    if not b.gpt.dropout:
        return ""
    mask = b.tensor(f"{name}.mask", b.buffers[source].shape, "uint8")
    b.op(f"{name}.dropout", "dropout", [source], [out or source, mask], **how(b, place))
    return mask


def backward(b: Builder, name: str, mask: str, grad: str, out: str = "") -> str:
    """Emit the gradient behind a mask, if any, into `out` or a tensor of its own; returns it."""
    if not mask:
        return grad
    out = out or b.tensor(f"{name}.dropout.di", b.buffers[grad].shape)
    b.op(f"{name}.dropout.grad", "dropout_grad", [grad, mask], [out], rate=b.gpt.dropout)
    return out
