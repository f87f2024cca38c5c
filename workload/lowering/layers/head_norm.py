"""Norms of queries and of keys (QK-norm): an RMSNorm over the width of each head, with one gain for
all heads of queries and one for all of keys.

They work in place on the fused tensor, before the rotation, and keep what they took for the
backward pass. Every rank of x has heads of its own, so that the gains' gradients are summed over
x too; what y computes in copies is equal there.
Source: Dehghani et al. (ViT-22B, 2302.05442), section 2; Qwen3 Technical Report (2505.09388),
section 2. Counted is the traffic of a norm that writes elsewhere, as in Transformer Engine: the
copy that this one makes besides is not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topologies.records import record
from workload.layout import ONES, Layout
from workload.lowering.builder import Builder
from workload.op import Part

QUERIES, KEYS = "qnorm", "knorm"


@record
class Saved:
    """Names of a norm, of its gain, and of what it keeps: its input and the statistics."""

    name: str
    gain: str
    source: str
    stats: str


def declare(b: Builder, owner: Part) -> None:
    """Declare the gains, if the model has such norms."""
    shape = (b.gpt.width,)
    for name in (QUERIES, KEYS) if b.gpt.attention.qk_norm else ():
        layout = Layout(shape, shape, ((),), starts=ONES)
        gain = b.parameter(f"{owner}.{name}.w", owner, layout, sharded=False)
        b.parameters[gain] = replace(b.parameters[gain], terms=b.shards_of("heads"))


def forward(b: Builder, owner: Part, qkv: str) -> tuple[Saved, ...]:
    """Emit the norms of queries and of keys, if the model has them; returns what they keep."""
    saved = []
    for name in (QUERIES, KEYS) if b.gpt.attention.qk_norm else ():
        how = _shape(b, name)
        heads, width = how["count"], how["width"]
        source = b.tensor(f"{name}.i", (b.rows, heads * width))
        stats = b.tensor(f"{name}.stats", (1, b.rows * heads), b.wide)
        own = Saved(name, f"{owner}.{name}.w", source, stats)
        nbytes = 2 * b.nbytes(source) + b.nbytes(stats) + b.nbytes(own.gain)
        how |= {"eps": b.gpt.norm_eps}
        b.op(name, "head_norm", [qkv, own.gain], [qkv, source, stats], nbytes=nbytes, **how)
        saved.append(own)
    return tuple(saved)


def backward(b: Builder, saved: tuple[Saved, ...], grad: str) -> None:
    """Emit the gradients, in place of those of the normalised heads in the fused tensor `grad`."""
    for own in reversed(saved):
        old, new = b.grad_writes(own.gain, b.block.micro_batch)
        operands = (own.source, own.stats, own.gain)
        nbytes = 2 * b.nbytes(own.source) + sum(map(b.nbytes, (*operands, *old, *new)))
        reads = [grad, *operands, *old]
        b.op(
            f"{own.name}.grad",
            "head_norm_grad",
            reads,
            [grad, *new],
            nbytes=nbytes,
            first=b.starts,
            **_shape(b, own.name),
        )


def _shape(b: Builder, name: str) -> dict[str, Any]:
    """Which of one rank's heads, side by side in the fused tensor, are normalised: the first one's
    number, how many; and the width of each."""
    queries, keys = (
        count // b.grid.parts_of("heads") for count in (b.gpt.attention.heads, b.gpt.key_heads)
    )
    start, count = (0, queries) if name == QUERIES else (queries, keys)
    return {"first_head": start, "count": count, "width": b.gpt.width}
