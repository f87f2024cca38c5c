"""The model's norm on a residual stream whose width is split over y, with exact statistics.

Each rank sums its columns, the sums per token (LayerNorm two, RMSNorm one) are all-reduced over y,
and only then are the values normalised; the backward pass does likewise with as many sums. With one
rank on y both fuse.
"""

from __future__ import annotations

from typing import Any

from workload.layout import ONES, ZEROS, Layout
from workload.lowering.builder import Builder
from workload.op import Part

SUMS = {"layernorm": 2, "rmsnorm": 1}


def declare(b: Builder, name: str, owner: Part, width: int = 0) -> None:
    """Declare gain and, if any, bias, split over y as the residual stream is; `width` is another
    than the stream's."""
    shape = (width or b.gpt.hidden,)
    for parameter, starts in zip(_parameters(b, name), (ONES, ZEROS), strict=False):
        layout = Layout(shape, shape, (b.shards_of("width"),), starts=starts)
        b.parameter(parameter, owner, layout, sharded=False)


def forward(b: Builder, name: str, parameter: str, source: str) -> tuple[str, str]:
    """Emit the normalisation of `source`; returns the output's and the statistics' names."""
    kind = b.gpt.norm
    out = b.tensor(f"{name}.o", b.buffers[source].shape)
    stats = b.tensor(f"{name}.stats", (SUMS[kind], b.buffers[source].shape[0]), b.wide)
    weights = _parameters(b, parameter)
    if b.grid.y == 1:
        about: dict[str, Any] = {"eps": b.gpt.norm_eps, "columns": b.buffers[source].shape[1]}
        b.op(name, kind, [source, *weights], [out, stats], **about)
        return out, stats
    b.op(f"{name}.sums", f"{kind}_sums", [source], [stats])
    b.all_reduce(f"{name}.reduce", stats, *b.shards_of("width"))
    reads = [source, stats, *weights]
    how: dict[str, Any] = {"width": b.gpt.hidden, "eps": b.gpt.norm_eps}
    b.op(name, f"{kind}_apply", reads, [out, stats], **how)
    return out, stats


def backward(b: Builder, name: str, parameter: str, saved: tuple[str, str], grad: str) -> None:
    """Emit the gradients; `grad` (of the output) becomes that of the input, in place.

    `saved` are the normalised tensor's source and the statistics.
    """
    label, kind, m = f"{name}.grad", b.gpt.norm, b.block.micro_batch
    halves = [b.grad_writes(weight, m) for weight in _parameters(b, parameter)]
    old, new = ([name for half in halves for name in half[side]] for side in (0, 1))
    reads = [grad, *saved, f"{parameter}.w"]
    if b.grid.y == 1:
        columns = b.buffers[grad].shape[1]
        b.op(label, f"{kind}_grad", reads + old, [grad, *new], first=b.starts, columns=columns)
        return
    sums = b.tensor(f"{label}.sums", (SUMS[kind], b.rows), b.wide, role="workspace")
    b.op(f"{label}.sums", f"{kind}_grad_sums", reads + old, [sums, *new], first=b.starts)
    b.all_reduce(f"{label}.sums.reduce", sums, *b.shards_of("width"))
    b.op(label, f"{kind}_grad_apply", [*reads, sums], [grad], width=b.gpt.hidden)


def _parameters(b: Builder, name: str) -> list[str]:
    return [f"{name}.w", f"{name}.b"] if b.gpt.norm_has_bias else [f"{name}.w"]
