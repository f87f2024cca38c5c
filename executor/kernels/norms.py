"""LayerNorm and RMSNorm, fused on whole rows or in two halves around an all-reduce of their sums.

LayerNorm's statistics are stored as (2, rows): sums while they travel, then mean and reciprocal
deviation. RMSNorm's are (1, rows): the sum of squares, then the reciprocal root of their mean. A
LayerNorm may come without bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.slices import cut, cut_columns, wide_rows
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def layernorm(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Normalise whole rows; writes the result and (mean, reciprocal deviation)."""
    source, gain, *bias = reads
    bias_or_none = bias[0] if bias else None
    for part in wide_rows(source, at, copies=1):
        out, mean, rstd = torch.native_layer_norm(
            cut(source, part), source.shape[1:], gain, bias_or_none, op.attributes["eps"]
        )
        cut(writes[0], part).copy_(out)
        writes[1][0, part].copy_(mean[:, 0])
        writes[1][1, part].copy_(rstd[:, 0])
        del out  # or the next slice's would be there beside it


def layernorm_sums(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Sum and sum of squares of a rank's columns, per row."""
    source, stats = reads[0], writes[0]
    for part in wide_rows(source, at):
        torch.sum(cut(source, part), 1, dtype=stats.dtype, out=stats[0, part])
        stats[1, part] = _squares(cut(source, part), stats.dtype)


def layernorm_apply(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Turn the summed statistics into mean and reciprocal deviation, and normalise."""
    source, stats, gain, *bias = reads
    stats.div_(op.attributes["width"])
    for part in wide_rows(source, at):
        mean, rstd = cut_columns(stats, part)
        rstd.sub_(mean.square()).add_(op.attributes["eps"]).rsqrt_()
        normal = _normal(cut(source, part), cut_columns(stats, part)).mul_(gain)
        for shift in bias:
            normal.add_(shift)
        cut(writes[0], part).copy_(normal)


def layernorm_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradient of whole rows in place, and those of gain and bias.

    torch's CPU kernel adds up rows of 16 bits in 16 bits: from some 256 rows on, gradients of gain
    and bias stop growing. There they are summed here, in the statistics' precision.
    """
    grad, source, stats, gain = reads[:4]
    wide = gain.to(stats.dtype)
    narrow = source.device.type == "cpu" and source.dtype == torch.bfloat16
    shape, wanted = list(source.shape[1:]), [True, not narrow, not narrow and len(writes) == 3]
    totals = [torch.zeros_like(wide) for _ in writes[1:]]
    for part in wide_rows(source, at, copies=3 if narrow else 1):
        mean, rstd = stats[:, part, None]
        given = cut(grad, part), cut(source, part)
        own = [*given, shape, mean, rstd, wide if narrow else gain, gain, wanted]
        d, *sums = torch.ops.aten.native_layer_norm_backward(*own)
        if narrow:
            weighted = _normal(given[1], cut_columns(stats, part)).mul_(given[0])
            sums = [weighted.sum(0), given[0].sum(0, dtype=stats.dtype)]
        cut(writes[0], part).copy_(d)
        for total, found in zip(totals, sums, strict=False):
            total.add_(found)
        del d  # or the next slice's would be there beside it
    add_totals(op, writes[1:], totals)


def layernorm_grad_sums(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The two sums per row that the gradient needs, over a rank's columns; gain and bias too."""
    grad, source, stats, gain = reads[:4]
    sums, wide = writes[0], gain.to(stats.dtype)
    totals = [torch.zeros_like(wide) for _ in writes[1:]]
    for part in wide_rows(source, at):
        own = cut(grad, part).to(stats.dtype)
        torch.mv(own, wide, out=sums[0, part])
        for total in totals[1:]:
            total.add_(own.sum(0))
        weighted = _normal(cut(source, part), cut_columns(stats, part)).mul_(own)
        torch.mv(weighted, wide, out=sums[1, part])
        totals[0].add_(weighted.sum(0))
    add_totals(op, writes[1:], totals)


def layernorm_grad_apply(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradient of a rank's columns from the sums over all of them, in place.

    dx = rstd (g dy - mean(g dy) - normal mean(g dy normal)).
    """
    grad, source, stats, gain, sums = reads
    for part in wide_rows(source, at):
        means = sums[:, part, None] / op.attributes["width"]
        normal = _normal(cut(source, part), cut_columns(stats, part))
        d = normal.mul_(means[1]).add_(means[0]).neg_()
        d.addcmul_(cut(grad, part).to(d.dtype), gain.to(d.dtype))
        cut(writes[0], part).copy_(d.mul_(stats[1, part, None]))


def rmsnorm(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Normalise whole rows; writes the result and the reciprocal root of the mean square."""
    source, gain = reads
    rmsnorm_sums(op, [source], [writes[1]], at)
    _rms_apply(op, [source, writes[1], gain], writes[0], source.shape[1], at)


def rmsnorm_sums(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Sum of squares of a rank's columns, per row."""
    source, stats = reads[0], writes[0]
    for part in wide_rows(source, at):
        stats[0, part] = _squares(cut(source, part), stats.dtype)


def rmsnorm_apply(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Turn the summed squares into the reciprocal root of their mean, and normalise."""
    _rms_apply(op, reads, writes[0], op.attributes["width"], at)


def rmsnorm_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradient of whole rows in place, and that of the gain."""
    grad, source, stats, gain = reads[:4]
    total = torch.zeros_like(gain, dtype=stats.dtype)
    for part in wide_rows(source, at):
        own = [cut(grad, part), cut(source, part), cut_columns(stats, part), gain]
        sums = torch.empty_like(cut_columns(stats, part))
        _rms_sums(own, sums, total)
        _rms_grad(own, sums.div_(source.shape[1]), cut(writes[0], part))
    add_totals(op, writes[1:], [total])


def rmsnorm_grad_sums(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The one sum per row that the gradient needs, over a rank's columns; the gain's gradient."""
    grad, source, stats, gain = reads[:4]
    total = torch.zeros_like(gain, dtype=stats.dtype)
    for part in wide_rows(source, at):
        own = [cut(grad, part), cut(source, part), cut_columns(stats, part), gain]
        _rms_sums(own, cut_columns(writes[0], part), total)
    add_totals(op, writes[1:], [total])


def rmsnorm_grad_apply(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Gradient of a rank's columns from the sums over all of them, in place."""
    grad, source, stats, gain, sums = reads
    for part in wide_rows(source, at):
        means = cut_columns(sums, part) / op.attributes["width"]
        own = [cut(grad, part), cut(source, part), cut_columns(stats, part), gain]
        _rms_grad(own, means, cut(writes[0], part))


def _squares(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(source, dim=1, dtype=dtype)
    return norms.square_()


def _normal(source: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    return (source - stats[0, :, None]).mul_(stats[1, :, None])


def _rms_apply(op: Op, reads: Tensors, out: torch.Tensor, width: int, at: RankContext) -> None:
    source, stats, gain = reads
    stats.div_(width).add_(op.attributes["eps"]).rsqrt_()
    for part in wide_rows(source, at):
        cut(out, part).copy_((cut(source, part) * stats[0, part, None]).mul_(gain))


def _rms_sums(reads: Tensors, sums: torch.Tensor, total: torch.Tensor) -> None:
    """A slice's sums per row, and what it adds to the gain's gradient."""
    grad, source, stats, gain = reads
    weighted = (source * stats[0, :, None]).mul_(grad)
    torch.mv(weighted, gain.to(stats.dtype), out=sums[0])
    total.add_(weighted.sum(0))


def _rms_grad(reads: Tensors, means: torch.Tensor, out: torch.Tensor) -> None:
    """dx = rstd (g dy - normal mean(g dy normal)), of a slice."""
    grad, source, stats, gain = reads
    normal = source * stats[0, :, None]
    d = normal.mul_(means[0, :, None]).neg_()
    d.addcmul_(grad.to(d.dtype), gain.to(d.dtype))
    out.copy_(d.mul_(stats[0, :, None]))


def add_totals(op: Op, totals: Tensors, parts: Tensors) -> None:
    """Add a micro-batch's gradients of gain and bias to the step's; the first one overwrites."""
    for total, part in zip(totals, parts, strict=True):
        if op.attributes["first"]:
            total.copy_(part)
        else:
            total.add_(part)
