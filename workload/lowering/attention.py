"""The attention core on fused query, key and value, and the rotation of queries and keys.

Heads are split over x, those of queries and those of keys and values alike; what y then computes in
copies carries `replicas`.
"""

from __future__ import annotations

from typing import Any

from workload.lowering.builder import Builder


def forward(b: Builder, prefix: str, qkv: str) -> tuple[str, str]:
    """Emit the core (behind the rotation, if any); returns context and log-sum-exp."""
    _rotate(b, f"{prefix}rope", "rope", qkv)
    shape = _shape(b)
    heads, width = shape["heads"], shape["width"]
    context = b.tensor(f"{prefix}attention.o", (b.rows, heads * width))
    lse_shape = (b.plan.micro_batch, heads, b.gpt.sequence)
    logsumexp = b.tensor(f"{prefix}attention.lse", lse_shape, b.wide)
    b.op(
        f"{prefix}attention",
        "attention",
        [qkv],
        [context, logsumexp],
        flops=4 * b.rows * b.gpt.sequence * heads * width,
        replicas=b.grid.y,
        **shape,
    )
    return context, logsumexp


def backward(b: Builder, prefix: str, saved: tuple[str, str, str], grad: str) -> str:
    """Emit the gradient of the fused tensor from that of the context.

    `saved` are the fused tensor, rotated as it is, the context and the log-sum-exp.
    """
    shape = _shape(b)
    out = b.tensor(f"{prefix}attention.dqkv", b.buffers[saved[0]].shape)
    b.op(
        f"{prefix}attention.grad",
        "attention_grad",
        [grad, *saved],
        [out],
        flops=8 * b.rows * b.gpt.sequence * shape["heads"] * shape["width"],
        replicas=b.grid.y,
        **shape,
    )
    _rotate(b, f"{prefix}rope.grad", "rope_grad", out)
    return out


def _rotate(b: Builder, name: str, kind: str, qkv: str) -> None:
    """Emit the rotation of queries and keys in place; values are neither read nor written."""
    if b.gpt.positions == "rope":
        shape = _shape(b)
        turned = b.rows * (shape["heads"] + shape["kv_heads"]) * shape["width"]
        nbytes = 2 * turned * b.item_bytes()
        b.op(name, kind, [qkv], [qkv], nbytes=nbytes, base=b.gpt.rope_base, **shape)


def _shape(b: Builder) -> dict[str, Any]:
    """One rank's heads of queries, and of keys and values; a head's width; the sequence."""
    gpt, x = b.gpt, b.grid.x
    shape = {"heads": gpt.heads // x, "kv_heads": gpt.key_heads // x, "width": gpt.width}
    return {**shape, "sequence": gpt.sequence, "alibi": gpt.positions == "alibi"}
