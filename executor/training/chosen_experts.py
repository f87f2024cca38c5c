"""How often tokens chose each expert in the steps of a run: what a routing histogram is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from workload.gpt import GPT
from workload.grid import Axes
from workload.op import Op
from workload.plan import Plan

Counts = dict[int, list[int]]


class ChosenExperts:
    """The choices of one rank's tokens, by layer; those that run again, in the backward pass or in
    a second pass over the batch, count once."""

    def __init__(self, experts: int, micro_batches: int) -> None:
        self._experts, self._micro_batches = experts, micro_batches
        self._counts: dict[int, torch.Tensor] = {}

    def add(self, op: Op, chosen: torch.Tensor) -> None:
        """Count what an op of a layer chose, (tokens, experts of each)."""
        if op.is_recomputed or op.micro_batch >= self._micro_batches:
            return
        found = chosen.reshape(-1).bincount(minlength=self._experts)
        known = self._counts.get(op.part.layer)
        self._counts[op.part.layer] = found if known is None else known.add_(found)

    def counts(self) -> Counts:
        """How often each expert was chosen, by layer."""
        return {layer: found.tolist() for layer, found in self._counts.items()}


def copies_of_choices(plan: Plan) -> Axes:
    """The axes whose ranks choose for the same tokens, all of them alike."""
    rows = () if plan.sp else plan.grid.shards_of("rows")
    return *plan.grid.shards_of("width"), *rows


def counter(gpt: GPT, plan: Plan, rank: int) -> ChosenExperts | None:
    """What counts on a rank; None on one whose choices another one counts."""
    at = plan.grid.coordinates(rank)
    is_first = not any(at[axis] for axis in copies_of_choices(plan))
    return ChosenExperts(gpt.moe.experts, plan.micro_batches) if is_first else None


def summed(ranks: Iterable[Mapping[int, list[int]]]) -> Counts:
    """The choices of all ranks.

    >>> summed([{1: [3, 1]}, {0: [2, 2]}, {1: [0, 4]}])
    {1: [3, 5], 0: [2, 2]}
    """
    found: Counts = {}
    for own in ranks:
        for layer, counts in own.items():
            known = found.get(layer, [0] * len(counts))
            found[layer] = [a + b for a, b in zip(known, counts, strict=True)]
    return found
