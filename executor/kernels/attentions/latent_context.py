"""Around the core of latent attention whose ranks of context gather compressed keys and values:
queries and the keys' one part turned by positions, and keys and values of all rows side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.attentions.attention import turn
from executor.kernels.attentions.heads import value_width
from executor.kernels.attentions.latent import scores_factor, up_bands
from executor.kernels.slices import row_slices, wide_dtype
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def latent_turn(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Turn the last columns of a rank's queries, and the keys' one part, by positions, in place."""
    queries, positions = _parts(op, writes)
    for part in (queries[..., -positions.shape[-1] :], positions):
        turn(op, part, at, forward=True)
    if (factor := scores_factor(op)) != 1:
        queries.mul_(factor)


def latent_turn_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Turn their gradients back, in place."""
    queries, positions = _parts(op, writes)
    if (factor := scores_factor(op)) != 1:
        queries.mul_(factor)
    for part in (queries[..., -positions.shape[-1] :], positions):
        turn(op, part, at, forward=False)


def latent_keys(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Keys and values of all rows and a rank's heads, side by side, from what leads up to both and
    from the keys' one part, turned already."""
    keys, values = _side_by_side(op, writes[0])
    own_keys, own_values = up_bands(op, reads[0])
    plain = own_keys.shape[2]
    keys[..., :plain].copy_(own_keys)
    keys[..., plain:].copy_(reads[1][:, None])
    values.copy_(own_values)


def latent_keys_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The gradients of what `latent_keys` reads; that of the one part is of this rank's heads."""
    keys, values = _side_by_side(op, reads[0])
    own_keys, own_values = up_bands(op, writes[0])
    plain, positions = own_keys.shape[2], writes[1]
    own_keys.copy_(keys[..., :plain])
    own_values.copy_(values)
    for part in row_slices(len(positions), 2 * positions.shape[1] * 8, at):
        positions[part].copy_(keys[part, :, plain:].sum(1, dtype=wide_dtype(positions)))


def _parts(op: Op, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Views (rows, heads, width) of queries, and of the one part."""
    queries, positions = tensors
    return queries.view(len(queries), op.attributes["heads"], -1), positions[:, None]


def _side_by_side(op: Op, both: torch.Tensor) -> list[torch.Tensor]:
    """Views (rows, heads, width) of keys and values."""
    heads = op.attributes["heads"]
    widths = [heads * op.attributes["width"], heads * value_width(op)]
    return [part.view(len(part), heads, -1) for part in both.split_with_sizes(widths, 1)]
