"""All-to-alls inside each node and then across nodes, between ranks of the same place in each.

Letters: N nodes of L ranks each; a rank (n, l) is the l-th of node n. First (n, l) gives (n, l')
all that it has for the l'-th ranks of all nodes; then those exchange what they hold, by sender, so
that all arrives in the order of one step. Both are calls on the whole group, in which ranks that
have nothing for each other send no bytes. Source: Tutel (2206.03382), 2DH all-to-all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from executor.exchanges.nodes import Nodes
from executor.exchanges.plain import Sizes, exchange

Group = dist.ProcessGroup


def exchange_in_steps(
    source: torch.Tensor,
    target: torch.Tensor,
    sizes: Sizes | None,
    group: Group,
    local_world_size: int,
) -> dist.Work:
    """Start an all-to-all in two steps, of so many rows for each rank and from it, or of equal
    parts, in a group that has `local_world_size` ranks on each node. The first step is awaited."""
    at = Nodes.of(group, local_world_size)
    if sizes is None:
        equal = [len(source) // group.size()] * group.size()
        sizes, relayed = (equal, equal), [equal[: at.count]] * local_world_size
    else:
        relayed = _relayed(sizes[0], group, at, source.device)
    sent, came = sizes
    inside = [sum(sent[place::local_world_size]) for place in range(local_world_size)]
    held = source.new_empty((sum(map(sum, relayed)), *source.shape[1:]))
    ways = at.on_own(inside), at.on_own([sum(row) for row in relayed])
    exchange(_by_place(source, sent, local_world_size), held, ways, group).wait()
    second = _by_node(held, relayed)
    del held  # before the second step: no more than two copies at once
    nodes, each = range(at.count), local_world_size
    across = [sum(row[node] for row in relayed) for node in nodes]
    arriving = [sum(came[node * each : (node + 1) * each]) for node in nodes]
    return exchange(second, target, (at.on_each(across), at.on_each(arriving)), group)


def _by_place(source: torch.Tensor, sent: Sequence[int], each: int) -> torch.Tensor:
    """A copy of rows that lie by rank, with those for one place of all nodes together."""
    parts = torch.split(source, list(sent))
    return torch.cat([part for place in range(each) for part in parts[place::each]])


def _by_node(held: torch.Tensor, relayed: Sequence[Sequence[int]]) -> torch.Tensor:
    """A copy of rows that lie by their sender and of each by node, with those for a node
    together."""
    pieces, nodes = torch.split(held, [count for row in relayed for count in row]), len(relayed[0])
    return torch.cat([piece for n in range(nodes) for piece in pieces[n::nodes]])


def _relayed(sent: Sequence[int], group: Group, at: Nodes, device: torch.device) -> list[list[int]]:
    """How many rows each rank of this node has for this rank's place on every node."""
    counts = torch.tensor(sent, device=device).view(at.count, at.local_world_size).t().contiguous()
    found = torch.empty_like(counts)
    splits = at.on_own([at.count] * at.local_world_size)
    exchange(counts.view(-1), found.view(-1), (splits, splits), group).wait()
    held: list[list[int]] = found.tolist()
    return held
