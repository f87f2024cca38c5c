"""An all-to-all in one step, which every other exchange of rows is made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

Sizes = tuple[Sequence[int], Sequence[int]]  # rows for each rank of a group, and from each


def exchange(
    source: torch.Tensor, target: torch.Tensor, sizes: Sizes | None, group: dist.ProcessGroup
) -> dist.Work:
    """Start an all-to-all of rows (dimension 0) of `source` into `target`, both by rank: of so many
    rows for each rank and from it, or of equal parts. The caller awaits it.

    Sizes that do not add up to the tensors' rows raise a RuntimeError of torch, on that rank alone.
    """
    sent, came = (None, None) if sizes is None else map(list, sizes)
    work: dist.Work | None = dist.all_to_all_single(
        target, source, came, sent, group, async_op=True
    )
    assert work is not None, "the rank is a member"
    return work
