"""Who holds which part of a weight, once x and y have cut its tile.

Letters: S is the part of data that shards, all of it or runs of neighbours ("shard").
Source: Rajbhandari et al. (ZeRO, SC20), section 5; Zhao et al. (FSDP, VLDB 2023) for the runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from workload.plan import Plan

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sharding:
    """The axes that split a weight's flattened tile: its parameter, gradient, optimizer state.

    The first axis named varies fastest, so that a gather over S alone restores the part of z.
    Where one collective runs over both, its members hold parts in rank order, which is that of data
    if `data_first`. `over` is S, if anything is sharded over it; gradients are equal on ranks of S
    and summed over `copies` once a step.
    """

    parameters: Axes
    gradients: Axes
    optimizer: Axes
    over: Axes
    copies: Axes
    data_first: bool = False

    def flat(self, axes: Axes) -> Axes:
        """The axes over which a tile is cut, the fastest first."""
        return axes[::-1] if self.data_first else axes


def sharding_of(plan: Plan, *, of_experts: bool = False) -> Sharding:
    """What z and `zero` split: z everything, zero=1, 2 and 3 one thing more over S each.

    For the weights of experts, S is that part of data on which ranks hold the same experts.
    """
    z = ("z",)
    part = "shard" if 0 < plan.shard < plan.data else "data"
    of_experts = of_experts and plan.expert > 1
    if of_experts:
        (part,) = plan.grid.replicas_of("experts")
    if not plan.zero or plan.grid.size(part) == 1:
        return Sharding(z, z, z, (), plan.grid.replicas_of("experts" if of_experts else "weights"))
    copies = ("replica",) if part == "shard" else ()
    data_first = plan.order.index("data") < plan.order.index("z")
    if plan.zero == 3:
        every = ("z", part)
        return Sharding(every, every, every, (part,), copies, data_first)
    both = (part, "z")
    return Sharding(z, both if plan.zero == 2 else z, both, (part,), copies)
