"""Where the rows of each expert lie in a copy that a recipe by blocks makes of them.

Every expert's rows begin at a multiple of the recipe's `align`, as Transformer Engine's padding of
grouped linears and Megatron-Core's `get_align_size_for_quantization` have it, so that no block has
rows of two experts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from topologies.records import record
from workload.op import Op


@record
class Place:
    """An expert's rows as they came, in the copy without and with what fills them up, and the rows
    of its scales."""

    rows: slice
    values: slice
    filled: slice
    scales: slice


def places_of_experts(op: Op, counts: torch.Tensor, height: int) -> Iterator[Place]:
    """The places of each expert of this rank, given how many rows it gets from each rank, and how
    many rows share a scale. An op's `each` stands for counts without values."""
    local, align = op.attributes["count"], op.attributes["align"]
    each = op.attributes.get("each")
    row = value = scale = 0
    for count in counts.view(-1, local).sum(0).tolist() if each is None else [each] * local:
        filled = -(-count // align) * align
        scales = -(-filled // height)
        yield Place(
            slice(row, row + count),
            slice(value, value + count),
            slice(value, value + filled),
            slice(scale, scale + scales),
        )
        row, value, scale = row + count, value + filled, scale + scales
