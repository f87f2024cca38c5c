"""MeZO and its kin: parameters moved along random directions, slopes from losses, updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from executor.kernels.optimizer import copy_masters, decay_rates
from executor.kernels.slices import row_slices, wide_dtype
from executor.kernels.updates.directions import (
    DRAWN_BYTES,
    Cutting,
    directions_of,
    draw,
    own_direction,
)
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def perturb(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Move parameters, or copies of masters that stay, along the replica's direction by a multiple
    of eps."""
    direction, by = own_direction(op, at), op.attributes["scale"] * op.attributes["eps"]
    for weight, source, (name, cutting) in zip(writes, reads, _cuttings(op, at), strict=True):
        moved, start = weight.view(-1), source.view(-1)
        for part in row_slices(len(start), DRAWN_BYTES, at):
            drawn = draw(direction, name, cutting, part, wide_dtype(start))
            moved[part] = drawn.mul_(by).add_(start[part])


def slope(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The projected gradient (loss along - loss against) / (2 eps), and the mean loss."""
    along, against = reads
    (out,) = writes[0]
    torch.sub(along[0], against[0], out=out[0]).div_(2 * op.attributes["eps"])
    torch.add(along[0], against[0], out=out[1]).div_(2)


def slopes_loss(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The step's loss: replicas have its parts, each over its own tokens."""
    torch.sum(reads[0][:, 1], 0, keepdim=True, out=writes[0])


def update(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Back along the replica's own direction, where the last pass left the parameters moved; then
    decay, and a step along each direction by its slope.

    The slopes are parts of the mean over all tokens, so their directions are added up. One that
    several replicas have is drawn once.
    """
    slopes, lr, own = reads[0][:, 0], at.adamw.lr, own_direction(op, at)
    steps: dict[str, torch.Tensor] = {}
    for direction, each in zip(directions_of(op, at), slopes, strict=True):
        steps[direction] = steps.get(direction, 0) + each * lr
    rates, back = decay_rates(op, at), op.attributes["back"]
    trained = writes[: len(rates)]
    for weight, rate, (name, cutting) in zip(trained, rates, _cuttings(op, at), strict=True):
        flat = weight.view(-1)
        for part in row_slices(len(flat), DRAWN_BYTES, at):
            moved = flat[part].to(wide_dtype(flat), copy=True)
            if back:
                moved.add_(draw(own, name, cutting, part, moved.dtype), alpha=back)
            moved.mul_(1 - lr * rate)
            for direction, step in steps.items():
                moved.sub_(draw(direction, name, cutting, part, moved.dtype).mul_(step))
            flat[part] = moved
    copy_masters(op, trained, writes[len(rates) :])


def _cuttings(op: Op, at: RankContext) -> Iterator[tuple[str, Cutting]]:
    """Each parameter's name, and how it is cut."""
    for name, cut in zip(op.attributes["parameters"], op.attributes["cuts"], strict=True):
        yield name, Cutting(cut, at)
