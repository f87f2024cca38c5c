"""The attention core in single steps: scores and probabilities are whole squares in memory.

Letters: s is the sequence, d a head's width (v that of its values), g how many heads of queries
share one of keys. The products run once for each head of keys, whose g heads of queries stand below
each other.
Source: Megatron-LM's CoreAttention with its fused scale, mask and softmax.
"""

from __future__ import annotations

from typing import Any

from workload.lowering.builder import Builder
from workload.lowering.layers import dropout

Shape = dict[str, Any]
OPERANDS = {
    "scores": ("queries", "keys", "square"),
    "context": ("square", "values", "context"),
    "grad.values": ("square", "context", "values"),
    "grad.scores": ("context", "values", "square"),
    "grad.queries": ("square", "keys", "queries"),
    "grad.keys": ("square", "queries", "keys"),
}


def forward(b: Builder, place: str, qkv: str, shape: Shape) -> tuple[str, tuple[str, ...]]:
    """Emit scores, softmax, dropout and context.

    Returns the context, and the probabilities that the softmax made and that remained, and the mask
    between them, if any.
    """
    name = "attention"
    scores = b.tensor(f"{name}.scores.o", _square(b, shape))
    _product(b, name, "scores", (qkv, qkv, scores), shape)
    probabilities = b.tensor(f"{name}.softmax.o", _square(b, shape))
    b.op(f"{name}.softmax", "softmax", [scores], [probabilities], **shape)
    kept, mask = probabilities, ""
    if b.gpt.dropout:
        kept = b.tensor(f"{name}.dropout.o", _square(b, shape))
        mask = dropout.forward(b, name, place, probabilities, kept)
    context = b.tensor(f"{name}.o", (b.rows, b.gpt.context_width // b.grid.tp))
    _product(b, name, "context", (kept, qkv, context), shape)
    return context, (probabilities, kept, mask)


def backward(
    b: Builder, name: str, saved: tuple[str, ...], grad: str, out: str, shape: Shape
) -> None:
    """Emit the gradients of queries, keys and values, bands of `out`.

    `saved` are the fused tensor and what `forward` returned beside the context.
    """
    qkv, probabilities, kept, mask = saved
    scores = b.tensor(f"{name}.dscores", _square(b, shape))
    _product(b, name, "grad.values", (kept, grad, out), shape)
    _product(b, name, "grad.scores", (grad, qkv, scores), shape)
    dropout.backward(b, name, mask, scores, scores)
    b.op(f"{name}.softmax.grad", "softmax_grad", [scores, probabilities], [scores], **shape)
    _product(b, name, "grad.queries", (scores, qkv, out), shape)
    _product(b, name, "grad.keys", (scores, qkv, out), shape)


def _product(b: Builder, name: str, step: str, tensors: tuple[str, str, str], shape: Shape) -> None:
    """Emit one batched matmul on parts of the fused tensors; scores and what follows are scaled."""
    operands = OPERANDS[step]
    heads, keys, d, s = (shape[key] for key in ("heads", "kv_heads", "width", "sequence"))
    v, rows = shape.get("value_width", d), heads // keys * s
    inner = v if "context" in operands[:2] else d
    form, m, n, k = {
        "square": ("NT", rows, s, inner),
        "context": ("NN", rows, v, s),
        "queries": ("NN", rows, d, s),
        "keys": ("TN", s, d, rows),
        "values": ("TN", s, v, rows),
    }[operands[2]]
    count = b.plan.mbs * keys
    *reads, write = tensors
    b.op(
        f"{name}.{step}",
        "batched_matmul",
        reads,
        [write],
        nbytes=count * (m * k + k * n + m * n) * b.item_bytes(),
        flops=2 * count * m * n * k,
        replicas=b.grid.y,
        form=form,
        count=count,
        m=m,
        n=n,
        k=k,
        operands=operands,
        scaled=step in ("scores", "grad.queries", "grad.keys"),
        **shape,
    )


def _square(b: Builder, shape: Shape) -> tuple[int, int, int, int]:
    return (b.plan.mbs, shape["heads"], shape["sequence"], shape["sequence"])
