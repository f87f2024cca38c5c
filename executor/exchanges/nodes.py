"""Which ranks of a group share a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch.distributed as dist

from topologies.records import record
from workload.errors import PlanCannotRunError
from workload.op import FOR_NODES, STEPS, Op


def depends_on_nodes(op: Op) -> bool:
    """Whether an op is another one on several nodes than on one."""
    return STEPS in op.attributes or FOR_NODES in op.attributes


def local_world_size(members: Sequence[int], ranks_of_node: int, op: Op) -> int:
    """How many ranks of an op's group, by their numbers in the job, each of its nodes has, where
    ranks fill nodes of `ranks_of_node` one after the other.

    Raises PlanCannotRunError where one node has more of them than another, which the other groups
    of the op cannot know: whoever asks for this tells all ranks (`ProcessGroups.prepare`).
    """
    if op.attributes.get(STEPS) == 1:  # every rank counts as a node
        return 1
    counts = set(Counter(rank // ranks_of_node for rank in members).values())
    if len(counts) > 1:
        raise PlanCannotRunError(
            f"{op.label} is an exchange inside nodes and across them, of ranks "
            f"{', '.join(map(str, members))}, of which nodes of {ranks_of_node} ranks have "
            f"{' or '.join(map(str, sorted(counts)))}; it needs as many on each, or "
            "dispatcher=all_to_all"
        )
    return counts.pop()


@record
class Nodes:
    """Where a rank is in a group of so many nodes, of `local_world_size` ranks each: rank (n, l) is
    the `local_rank` l of `node` n, and number n * local_world_size + l of the group."""

    count: int
    node: int
    local_rank: int
    local_world_size: int

    @staticmethod
    def of(group: dist.ProcessGroup, local_world_size: int) -> Nodes:
        """Where this rank is in a group."""
        place = divmod(dist.get_rank(group), local_world_size)
        return Nodes(group.size() // local_world_size, *place, local_world_size)

    def on_own(self, counts: Sequence[int]) -> list[int]:
        """Counts for the ranks of this node, zero for all others of the group."""
        each, found = self.local_world_size, [0] * self.count * self.local_world_size
        found[self.node * each : (self.node + 1) * each] = counts
        return found

    def on_each(self, counts: Sequence[int]) -> list[int]:
        """Counts for the ranks of this one's place on every node, zero for all others."""
        found = [0] * self.count * self.local_world_size
        found[self.local_rank :: self.local_world_size] = counts
        return found
