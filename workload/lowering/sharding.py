"""Who holds which part of a weight, once x and y have cut its tile.

Letters: S is what shards: the axis context, with data, all of it or runs of neighbours ("shard").
Source: Rajbhandari et al. (ZeRO, SC20), section 5; Zhao et al. (FSDP, VLDB 2023) for the runs;
Megatron-Core's distributed optimizer and torchtitan for context.
"""

from __future__ import annotations

from topologies.records import record
from workload.grid import axes_of
from workload.plan import Plan

Axes = tuple[str, ...]
PART_OF = {"shard": "dp", "edp": "dp", "edp_shard": "dp"}


@record
class Sharding:
    """The axes that split a weight's flattened tile: its parameter, gradient, optimizer state.

    Where S stands first, its parts are parts of z's, so that a gather over S alone restores these.
    Members of one collective hold parts in the order of their ranks, and `fastest` has axes in that
    order. `over` is S, if anything is sharded over it; gradients are equal on ranks of S and summed
    over `copies` once a step.
    """

    parameters: Axes
    gradients: Axes
    optimizer: Axes
    over: Axes
    copies: Axes
    fastest: Axes = ()

    def flat(self, axes: Axes) -> Axes:
        """The axes over which a tile is cut, the fastest first."""
        together = [axes] if axes[0] == "z" else [self.over, ("z",)]
        return tuple(each for some in together for each in sorted(some, key=self._place))

    def _place(self, axis: str) -> int:
        return self.fastest.index(_whole(axis))

    def collectives(self, axes: Axes) -> list[Axes]:
        """The axes of the reduce-scatters that leave a tile in these parts, one after the other."""
        return [axes] if axes[0] == "z" else [("z",), self.over]


def sharding_of(plan: Plan, *, of_experts: bool = False, sums_whole: bool = False) -> Sharding:
    """What z and `zero` split: z everything, zero=1, 2 and 3 one thing more over S each.

    For the weights of experts, S is that part of x, context and data on which ranks hold the same.
    With `sums_whole` gradients are not split over S, whatever `zero` says.
    """
    z = ("z",)
    part = "shard" if 0 < plan.shard < plan.dp else "dp"
    alike = plan.grid.replicas_of("weights")
    shards: Axes = ("cp", part)
    if of_experts and plan.folds_experts:
        alike = plan.expert_copies
        shards = *alike[:-1], "edp_shard" if part == "shard" else alike[-1]
    over = tuple(axis for axis in shards if plan.grid.size(axis) > 1)
    places = {"z", "cp", "dp", *(_whole(axis) for axis in over)}
    fastest = tuple(axis for axis in axes_of(plan.order) if axis in places)
    if not plan.zero or not over:
        return Sharding(z, z, z, (), alike, fastest)
    copies = ("replica",) if part == "shard" else ()
    both = (*z, *over) if plan.zero == 3 else (*over, *z)
    first = both if plan.zero == 3 else z
    sums = both if plan.zero > 1 and not sums_whole else z
    return Sharding(first, sums, both, over, copies, fastest)


def _whole(axis: str) -> str:
    """The axis that one is a part of, or itself.

    >>> _whole("outer_tp"), _whole("edp"), _whole("z")
    ('tp', 'dp', 'z')
    """
    return PART_OF.get(axis, axis.removeprefix("outer_"))
