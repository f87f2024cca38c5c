"""LayerNorm and RMSNorm, fused on whole rows or in two halves around an all-reduce of their sums.

LayerNorm's statistics are stored as (2, rows): sums while they travel, then mean and reciprocal
deviation. RMSNorm's are (1, rows): the sum of squares, then the reciprocal root of their mean. A
LayerNorm may come without bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.place import Place
from workload.op import Op

EPS = 1e-5
Tensors = Sequence[torch.Tensor]


def layernorm(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Normalise whole rows; writes the result and (mean, reciprocal deviation)."""
    source, gain, *bias = reads
    bias_or_none = bias[0] if bias else None
    out, mean, rstd = torch.native_layer_norm(source, source.shape[1:], gain, bias_or_none, EPS)
    writes[0].copy_(out)
    writes[1][0].copy_(mean[:, 0])
    writes[1][1].copy_(rstd[:, 0])


def layernorm_sums(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Sum and sum of squares of a rank's columns, per row."""
    source, stats = reads[0], writes[0]
    torch.sum(source, 1, dtype=stats.dtype, out=stats[0])
    stats[1] = torch.linalg.vector_norm(source, dim=1, dtype=stats.dtype).square_()


def layernorm_apply(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Turn the summed statistics into mean and reciprocal deviation, and normalise."""
    source, stats, gain, *bias = reads
    stats.div_(op.attributes["width"])
    stats[1].sub_(stats[0].square()).add_(EPS).rsqrt_()
    normal = (source - stats[0][:, None]).mul_(stats[1][:, None])
    normal.mul_(gain)
    for shift in bias:
        normal.add_(shift)
    writes[0].copy_(normal)


def layernorm_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Gradient of whole rows in place, and those of gain and bias.

    torch's CPU kernel adds up rows of 16 bits in 16 bits: from some 256 rows on, gradients of gain
    and bias stop growing. There they are summed here, in the statistics' precision.
    """
    grad, source, stats, gain = reads[:4]
    mean, rstd = stats[0][:, None], stats[1][:, None]
    here = source.device.type == "cpu" and source.dtype == torch.bfloat16
    sums: Sequence[torch.Tensor] = ()
    if here:
        gain = gain.to(stats.dtype)
        weighted = (source - mean).mul_(rstd).mul_(grad)
        sums = weighted.sum(0), grad.sum(0, dtype=stats.dtype)
    wanted = [True, not here, not here and len(writes) == 3]
    d, *summed = torch.ops.aten.native_layer_norm_backward(
        grad, source, list(source.shape[1:]), mean, rstd, gain, gain, wanted
    )
    writes[0].copy_(d)
    for total, part in zip(writes[1:], sums or summed, strict=False):
        _add(op, total, part)


def layernorm_grad_sums(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """The two sums per row that the gradient needs, over a rank's columns; gain and bias too."""
    grad, source, stats, gain = reads[:4]
    normal = (source - stats[0][:, None]).mul_(stats[1][:, None])
    weighted = grad * normal
    _add(op, writes[1], weighted.sum(0))
    if len(writes) == 3:
        _add(op, writes[2], grad.sum(0, dtype=stats.dtype))
    sums = writes[0]
    torch.mv(grad.to(stats.dtype), gain.to(stats.dtype), out=sums[0])
    torch.mv(weighted, gain.to(stats.dtype), out=sums[1])


def layernorm_grad_apply(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Gradient of a rank's columns from the sums over all of them, in place.

    dx = rstd (g dy - mean(g dy) - normal mean(g dy normal)).
    """
    grad, source, stats, gain, sums = reads
    means = sums / op.attributes["width"]
    normal = (source - stats[0][:, None]).mul_(stats[1][:, None])
    d = torch.addcmul(means[0][:, None], normal, means[1][:, None])
    writes[0].copy_((grad * gain - d).mul_(stats[1][:, None]))


def rmsnorm(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Normalise whole rows; writes the result and the reciprocal root of the mean square."""
    source, gain = reads
    rmsnorm_sums(op, [source], [writes[1]], at)
    _rms_apply(source, writes[1], gain, writes[0], source.shape[1])


def rmsnorm_sums(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Sum of squares of a rank's columns, per row."""
    stats = writes[0]
    stats[0] = torch.linalg.vector_norm(reads[0], dim=1, dtype=stats.dtype).square_()


def rmsnorm_apply(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Turn the summed squares into the reciprocal root of their mean, and normalise."""
    source, stats, gain = reads
    _rms_apply(source, stats, gain, writes[0], op.attributes["width"])


def rmsnorm_grad(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Gradient of whole rows in place, and that of the gain."""
    grad, source, stats, gain = reads[:4]
    sums = torch.empty_like(stats)
    rmsnorm_grad_sums(op, reads, [sums, writes[1]], at)
    _rms_grad(grad, source, stats, gain, sums.div_(source.shape[1]), writes[0])


def rmsnorm_grad_sums(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """The one sum per row that the gradient needs, over a rank's columns; the gain's gradient."""
    grad, source, stats, gain = reads[:4]
    weighted = (source * stats[0][:, None]).mul_(grad)
    _add(op, writes[1], weighted.sum(0))
    torch.mv(weighted, gain.to(stats.dtype), out=writes[0][0])


def rmsnorm_grad_apply(op: Op, reads: Tensors, writes: Tensors, at: Place) -> None:
    """Gradient of a rank's columns from the sums over all of them, in place."""
    grad, source, stats, gain, sums = reads
    _rms_grad(grad, source, stats, gain, sums / op.attributes["width"], writes[0])


def _rms_apply(
    source: torch.Tensor, stats: torch.Tensor, gain: torch.Tensor, out: torch.Tensor, width: int
) -> None:
    stats.div_(width).add_(EPS).rsqrt_()
    out.copy_((source * stats[0][:, None]).mul_(gain))


def _rms_grad(
    grad: torch.Tensor,
    source: torch.Tensor,
    stats: torch.Tensor,
    gain: torch.Tensor,
    means: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """dx = rstd (g dy - normal mean(g dy normal))."""
    normal = source * stats[0][:, None]
    out.copy_((grad * gain - normal.mul_(means[0][:, None])).mul_(stats[0][:, None]))


def _add(op: Op, total: torch.Tensor, part: torch.Tensor) -> None:
    if op.attributes["first"]:
        total.copy_(part)
    else:
        total.add_(part)
