"""Views of tensors by head, and the biases of heads' scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.slices import wide_dtype
from executor.rank_context import RankContext
from workload.op import Op


def heads_of(op: Op, qkv: torch.Tensor) -> list[torch.Tensor]:
    """Views of queries, keys and values, each (sequences, heads, sequence, width)."""
    return bands_of(op, qkv, int(op.attributes["sequence"]))


def bands_of(op: Op, qkv: torch.Tensor, tokens: int) -> list[torch.Tensor]:
    """Views likewise where a rank has so many tokens of each sequence; the tensor may have further
    columns behind these."""
    heads, kv_heads, width = (op.attributes[key] for key in ("heads", "kv_heads", "width"))
    counts, widths = (heads, kv_heads, kv_heads), (width, width, value_width(op))
    columns = [n * each for n, each in zip(counts, widths, strict=True)]
    whole = qkv.view(-1, tokens, qkv.shape[-1])[..., : sum(columns)]
    parts = whole.split_with_sizes(columns, -1)
    return [
        part.view(-1, tokens, n, each).transpose(1, 2)
        for part, n, each in zip(parts, counts, widths, strict=True)
    ]


def queries_of(op: Op, tensor: torch.Tensor, tokens: int) -> torch.Tensor:
    """The queries of a fused tensor, or of one that has them alone, likewise."""
    if "queries_alone" not in op.attributes:
        return bands_of(op, tensor, tokens)[0]
    heads, width = op.attributes["heads"], op.attributes["width"]
    return tensor.view(-1, tokens, heads, width).transpose(1, 2)


def value_width(op: Op) -> int:
    """The width of a head's values, and of its context."""
    return int(op.attributes.get("value_width", op.attributes["width"]))


def tokens_of(op: Op, tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """The shape (sequences, sequence, heads, width) of a context or its gradient."""
    heads, sequence = op.attributes["heads"], op.attributes["sequence"]
    return (tensor.shape[0] // sequence, sequence, heads, value_width(op))


def repeated(keys: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values with as many heads as queries have: neighbouring queries share a key."""
    if keys.shape[1] in (1, heads):
        return keys.expand(-1, heads, -1, -1)
    return keys.repeat_interleave(heads // keys.shape[1], 1)


def summed(grad: torch.Tensor, heads: int) -> torch.Tensor:
    """The gradient of `heads` heads from that of the copies that the queries used."""
    count, copies, *rest = grad.shape
    return grad if copies == heads else grad.reshape(count, heads, -1, *rest).sum(2)


def alibi_slopes(heads: int, device: torch.device | None = None) -> torch.Tensor:
    """The slope of each head: powers of 2^(-8 / heads), in float64.

    If there are no power of two of heads, those of the next one: every second, then the others.
    Source: Press et al. (2108.12409), section 3, and their released code.
    """
    whole = 1 << (heads - 1).bit_length()
    slopes = torch.exp2(torch.arange(1, whole + 1, dtype=torch.float64, device=device) * -8 / whole)
    return slopes if whole == heads else torch.cat([slopes[1::2], slopes[::2]])[:heads]


def head_part(op: Op, at: RankContext) -> tuple[int, int]:
    """Which part of all heads an op's are, and of how many: ranks along the axes `spread` have
    parts of each part of x."""
    axes = op.attributes.get("spread", ())
    ranks = at.grid.size(*axes)
    part, parts = at.part_of("heads"), at.grid.parts_of("heads")
    return part * ranks + at.part(axes), parts * ranks


def own_bands(
    op: Op, of_tile: torch.Tensor, widths: Sequence[int], at: RankContext
) -> list[torch.Tensor]:
    """Views of an op's columns of what has a column, or several, for each head of x: of bands side
    by side, in each of which its part is so wide."""
    axes = op.attributes.get("spread", ())
    part, parts = at.part(axes), at.grid.size(*axes)
    bands = of_tile.split_with_sizes([parts * width for width in widths], -1)
    return [band.narrow(-1, part * width, width) for band, width in zip(bands, widths, strict=True)]


def add_to_bands(
    op: Op, total: torch.Tensor, found: torch.Tensor, widths: Sequence[int], at: RankContext
) -> None:
    """Add a micro-batch's gradient of an op's columns to the step's; the first one overwrites it,
    with zeros in all other columns."""
    if op.attributes["first"]:
        total.zero_()
    parts = found.split_with_sizes(list(widths), -1)
    for own, part in zip(own_bands(op, total, widths, at), parts, strict=True):
        own.add_(part)


def own_heads(op: Op, of_tile: torch.Tensor, at: RankContext) -> torch.Tensor:
    """A view of an op's heads in what has a number for each head of x: sinks, rates of decay."""
    return own_bands(op, of_tile, (op.attributes["heads"],), at)[0]


def add_to_heads(op: Op, total: torch.Tensor, found: torch.Tensor, at: RankContext) -> None:
    """Add a micro-batch's gradient of such numbers to the step's."""
    add_to_bands(op, total, found, (op.attributes["heads"],), at)


def rank_slopes(op: Op, like: torch.Tensor, at: RankContext) -> torch.Tensor | None:
    """ALiBi's slopes of this rank's heads, (heads,), where the model has any; made on the device of
    `like`, for a copy from the host would wait for it."""
    if not op.attributes["alibi"]:
        return None
    heads = op.attributes["heads"]
    part, parts = head_part(op, at)
    own = alibi_slopes(heads * parts, like.device)[part * heads :][:heads]
    return own.to(wide_dtype(like))


def bias_scores(
    scores: torch.Tensor,
    queries: torch.Tensor,
    slopes: torch.Tensor | None,
    *,
    first: int = 0,
    window: int = 0,
) -> torch.Tensor:
    """Add ALiBi's bias to scores, (..., keys), and leave out keys after the query, or before its
    window, in place.

    `queries` are the positions of the rows, and `slopes` those of their heads, where there are any;
    both have the shape of the scores without their last dimension, or one that expands to it. The
    keys are those from position `first` on; without a `window` a query sees all before it.
    """
    keys = torch.arange(first, first + scores.shape[-1], device=scores.device)
    distance = queries[..., None] - keys
    if slopes is not None:
        scores.sub_(slopes[..., None] * distance)
    left = distance < 0
    return scores.masked_fill_(left | (distance >= window) if window else left, -torch.inf)
