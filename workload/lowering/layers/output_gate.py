"""The gate of attention: the core's output times the gate's sigmoid, element by element.

The gate is the last band of the fused tensor of queries, keys and values, made by the same linear
from the same rows, and each rank of x has that of its heads. The backward pass keeps the fused
tensor anyway; the core's output is kept beside the gated one, which the next linear reads.
Source: Qiu et al., Gated Attention (2505.06708), section 2.2 (elementwise, head-specific, after the
core: its best place); Megatron-Core, transformer/attention.py, `attention_output_gate`, whose one
linear makes the gate too and whose product is one compiled kernel. Not modelled: the separate
linear of Trinity's code in transformers (modeling_afmoe.py, `gate_proj`).
"""

from __future__ import annotations

from workload.lowering.builder import Builder

NAME = "output_gate"
FORWARD_TENSORS, BACKWARD_TENSORS = 3, 5  # of the core's width that a kernel reads and writes


def forward(b: Builder, qkv: str, context: str) -> str:
    """Emit the product, if the model has the gate; returns its name, or else that of the core's
    output."""
    if not b.gpt.attention.output_gate:
        return context
    gated = b.tensor(f"{NAME}.o", b.buffers[context].shape)
    b.op(NAME, NAME, [context, qkv], [gated], nbytes=FORWARD_TENSORS * b.nbytes(context))
    return gated


def backward(b: Builder, qkv: str, context: str, grad: str, out: str) -> str:
    """Emit the gradient of the gate, the last band of `out`, from that of the product; returns the
    gradient of the core's output."""
    if not b.gpt.attention.output_gate:
        return grad
    d = b.tensor(f"{NAME}.di", b.buffers[context].shape)
    nbytes = BACKWARD_TENSORS * b.nbytes(context)
    b.op(f"{NAME}.grad", f"{NAME}_grad", [grad, context, qkv], [d, out], nbytes=nbytes)
    return d
