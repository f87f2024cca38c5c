"""Where the tokens of all ranks are gathered: which of their choices a rank's own experts are.

Letters as in `executor.kernels.experts`, T tokens being those of all P ranks of `axes`; of the E
experts each rank has `local` in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.experts import EMPTY
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]


def count_own(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """How often each of this rank's experts was chosen, (local,) of `chosen` (T, k)."""
    own = _own(op, reads[0], at)
    found = own.new_zeros(op.attributes["local"] + 1)
    writes[0].copy_(found.scatter_add_(0, own, torch.ones_like(own))[:-1])


def own_places(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The `order` of rows of this rank's experts, of `chosen` (T, k): by expert and then by token.

    With `places` for each expert of each rank, of the orders of all ranks, (P * E * places,): by
    expert and then by rank, whose tokens have so many `choices` in front of the next one's.
    """
    if not op.attributes["places"]:
        by_expert = torch.sort(_own(op, reads[0], at), stable=True).indices
        writes[0].copy_(by_expert[: len(writes[0])])
        return
    local, part = op.attributes["local"], at.part(op.attributes["expert_axes"])
    ranks = at.grid.size(*op.attributes["expert_axes"])
    every = reads[0].view(ranks, -1, op.attributes["places"])[:, part * local : (part + 1) * local]
    before = torch.arange(ranks, device=every.device) * op.attributes["choices"]
    moved = torch.where(every == EMPTY, EMPTY, every + before[:, None, None])
    writes[0].copy_(moved.transpose(0, 1).reshape(-1))


def _own(op: Op, chosen: torch.Tensor, at: RankContext) -> torch.Tensor:
    """Which of this rank's experts each choice is; their number where it is another rank's."""
    local = op.attributes["local"]
    own = chosen.view(-1) - at.part(op.attributes["expert_axes"]) * local
    return torch.where((own >= 0) & (own < local), own, local)
