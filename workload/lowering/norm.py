"""LayerNorm on a residual stream whose width is split over y, with exact statistics.

Each rank sums its columns, the two sums per token are all-reduced over y, and only then are the
values normalised; the backward pass does likewise with its two sums. With one rank on y both fuse.
"""

from __future__ import annotations

from workload.layout import Layout
from workload.lowering.builder import Builder


def declare(b: Builder, name: str, owner: str) -> None:
    """Declare gain and bias, split over y as the residual stream is."""
    layout = Layout((b.gpt.hidden,), (b.gpt.hidden,), (("y",),))
    for part in ("w", "b"):
        b.parameter(f"{name}.{part}", owner, layout, sharded=False)


def forward(b: Builder, prefix: str, name: str, parameter: str, source: str) -> tuple[str, str]:
    """Emit the normalisation of `source`; returns the output's and the statistics' names."""
    op = f"{prefix}{name}"
    out = b.tensor(f"{op}.o", b.buffers[source].shape)
    stats = b.tensor(f"{op}.stats", (2, b.rows), b.wide)
    weights = [f"{parameter}.w", f"{parameter}.b"]
    if b.grid.y == 1:
        b.op(op, "layernorm", [source, *weights], [out, stats])
        return out, stats
    b.op(f"{op}.sums", "layernorm_sums", [source], [stats])
    b.all_reduce(f"{op}.reduce", stats, "y")
    reads = [source, stats, *weights]
    b.op(op, "layernorm_apply", reads, [out, stats], width=b.gpt.hidden)
    return out, stats


def backward(
    b: Builder, prefix: str, name: str, parameter: str, saved: tuple[str, str], grad: str, m: int
) -> None:
    """Emit the gradients; `grad` (of the output) becomes that of the input, in place.

    `saved` are the normalised tensor's source and the statistics; `m` is the micro-batch.
    """
    op = f"{prefix}{name}.grad"
    gain_reads, gain_writes = b.grad_writes(f"{parameter}.w", m)
    bias_reads, bias_writes = b.grad_writes(f"{parameter}.b", m)
    old, new = gain_reads + bias_reads, gain_writes + bias_writes
    reads = [grad, *saved, f"{parameter}.w"]
    if b.grid.y == 1:
        b.op(op, "layernorm_grad", reads + old, [grad, *new], first=m == 0)
        return
    sums = b.tensor(f"{op}.sums", (2, b.rows), b.wide, role="workspace")
    b.op(f"{op}.sums", "layernorm_grad_sums", reads + old, [sums, *new], first=m == 0)
    b.all_reduce(f"{op}.sums.reduce", sums, "y")
    b.op(op, "layernorm_grad_apply", [*reads, sums], [grad], width=b.gpt.hidden)
