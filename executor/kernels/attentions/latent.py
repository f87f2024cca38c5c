"""Around the core of latent attention: columns apart and together, and the heads' queries, keys and
values side by side, positions turned into them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.attentions.attention import turn
from executor.kernels.attentions.heads import value_width
from executor.kernels.slices import row_slices, wide_dtype
from executor.rank_context import RankContext
from workload.models.rope_scaling import scaling_of
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def split_columns(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Columns side by side, each run of them into a tensor of its own."""
    widths = [t.shape[1] for t in writes]
    for target, part in zip(writes, reads[0].split_with_sizes(widths, 1), strict=True):
        target.copy_(part)


def join_columns(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The columns of several tensors side by side."""
    widths = [t.shape[1] for t in reads]
    for source, part in zip(reads, writes[0].split_with_sizes(widths, 1), strict=True):
        part.copy_(source)


def latent_qkv(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Queries, keys and values of all heads, side by side, from queries, from keys and values, and
    from the keys' one part with positions.

    That part, the last of a head's columns, is turned by the position, in queries and keys.
    """
    queries, keys, values = _heads(op, writes[0])
    own_keys, own_values = up_bands(op, reads[1])
    plain = own_keys.shape[2]
    queries.copy_(reads[0].view(queries.shape))
    keys[..., :plain].copy_(own_keys)
    keys[..., plain:].copy_(reads[2][:, None])
    values.copy_(own_values)
    for part in (queries, keys):
        turn(op, part[..., plain:], at, forward=True)
    if (factor := scores_factor(op)) != 1:
        queries.mul_(factor)


def latent_qkv_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The gradients of what `latent_qkv` reads; that of the one part is of this rank's heads."""
    queries, keys, values = _heads(op, reads[0])
    own_keys, own_values = up_bands(op, writes[1])
    plain, positions = own_keys.shape[2], writes[2]
    own_queries = writes[0].view(queries.shape)
    own_queries.copy_(queries)
    if (factor := scores_factor(op)) != 1:
        own_queries.mul_(factor)
    own_keys.copy_(keys[..., :plain])
    own_values.copy_(values)
    for part in row_slices(len(positions), 2 * positions.shape[1] * 8, at):
        positions[part].copy_(keys[part, :, plain:].sum(1, dtype=wide_dtype(positions)))
    turn(op, own_queries[..., plain:], at, forward=False)
    turn(op, positions[:, None], at, forward=False)


def scores_factor(op: Op) -> float:
    """What a scaled RoPE multiplies all scores by, here by way of the queries."""
    scaling = scaling_of(op.attributes["scaling"])
    return 1.0 if scaling is None else scaling.scores_factor


def _heads(op: Op, qkv: torch.Tensor) -> list[torch.Tensor]:
    """Views (rows, heads, width) of queries, keys and values."""
    heads, width = op.attributes["heads"], op.attributes["width"]
    widths = [heads * each for each in (width, width, value_width(op))]
    return [part.view(len(part), heads, -1) for part in qkv.split_with_sizes(widths, 1)]


def up_bands(op: Op, both: torch.Tensor) -> list[torch.Tensor]:
    """Views (rows, heads, width) of keys without their positions, and of values."""
    heads, values = op.attributes["heads"], value_width(op)
    plain = op.attributes["width"] - op.attributes["rope_width"]
    widths = [heads * plain, heads * values]
    return [part.view(len(part), heads, -1) for part in both.split_with_sizes(widths, 1)]
