"""Whole tensors again from the parts that the ranks of a program hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from executor.weights import join
from workload.grid import WITHIN_STAGE
from workload.layout import Layout
from workload.plan import Plan

Packed = tuple[NDArray[np.uint8], torch.dtype, torch.Size]
Parts = Mapping[str, tuple[torch.Tensor, Layout]]


def wholes(parts: Parts, plan: Plan) -> list[tuple[str, torch.Tensor]]:
    """On rank 0 every stage's tensors under their names, joined; nothing on the other ranks.

    `parts` are what this rank holds and how it is cut. A tied table comes once from each stage that
    has it.
    """
    everyone: list[Any] = [None] * plan.grid.ranks
    mine = {name: (_packed(held), layout) for name, (held, layout) in parts.items()}
    dist.gather_object(mine, None if dist.get_rank() else everyone)
    if dist.get_rank():
        return []
    stages: list[list[int]] = plan.grid.groups(*WITHIN_STAGE).tolist()
    return [
        (name, join({rank: _tensor(everyone[rank][name][0]) for rank in ranks}, layout, plan.grid))
        for ranks in stages
        for name, (_, layout) in everyone[ranks[0]].items()
    ]


def _packed(held: torch.Tensor) -> Packed:
    """A tensor as its bytes: torch pickles one in a file of its own, ten times as long."""
    flat = held.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy(), held.dtype, held.shape


def _tensor(packed: Packed) -> torch.Tensor:
    own, dtype, shape = packed
    return torch.from_numpy(own).view(dtype).reshape(shape)
