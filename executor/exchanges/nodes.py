"""Which ranks of a group share a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch.distributed as dist

from workload.errors import PlanCannotRunError
from workload.op import FOR_NODES, STEPS, Op


def minds_nodes(op: Op) -> bool:
    """Whether an op is another one on several nodes than on one."""
    return STEPS in op.attributes or FOR_NODES in op.attributes


def per_node(members: Sequence[int], ranks_of_node: int, op: Op) -> int:
    """How many ranks of a group each of its nodes has, where ranks fill nodes one after the other;
    refused where one has more than another."""
    counts = set(Counter(rank // ranks_of_node for rank in members).values())
    if len(counts) > 1:
        raise PlanCannotRunError(
            f"{op.label} is an exchange inside nodes and across them, of ranks "
            f"{', '.join(map(str, members))}, of which nodes of {ranks_of_node} ranks have "
            f"{' or '.join(map(str, sorted(counts)))}; it needs as many on each, or "
            "dispatcher=all_to_all"
        )
    return counts.pop()


def place_of(group: dist.ProcessGroup, each: int) -> tuple[int, int, int]:
    """How many nodes of `each` ranks a group has, which of them this rank is on, and which of its
    ranks it is."""
    return (group.size() // each, *divmod(dist.get_rank(group), each))
