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

from executor.exchanges.nodes import place_of

Group = dist.ProcessGroup


def exchange_in_steps(
    source: torch.Tensor,
    target: torch.Tensor,
    sizes: tuple[Sequence[int], Sequence[int]] | None,
    group: Group,
    each: int,
) -> dist.Work:
    """Start an all-to-all in two steps, of so many rows for each rank and from it, or of equal
    parts. The first step is awaited."""
    nodes, node, local = place_of(group, each)
    if sizes is None:
        equal = [len(source) // group.size()] * group.size()
        sizes, relayed = (equal, equal), [equal[:nodes]] * each
    else:
        relayed = _relayed(sizes[0], group, each, source.device)
    sent, came = sizes
    inside = [sum(sent[place::each]) for place in range(each)]
    held = source.new_empty((sum(map(sum, relayed)), *source.shape[1:]))
    there = _of_node(node, each, inside, group.size())
    back = _of_node(node, each, [sum(row) for row in relayed], group.size())
    exchange(held, _by_place(source, sent, each), back, there, group).wait()
    second = _by_node(held, relayed)
    del held  # before the second step: no more than two copies at once
    across = _of_place(local, each, [sum(row[n] for row in relayed) for n in range(nodes)])
    arriving = [sum(came[n * each : (n + 1) * each]) for n in range(nodes)]
    return exchange(target, second, _of_place(local, each, arriving), across, group)


def _by_place(source: torch.Tensor, sent: Sequence[int], each: int) -> torch.Tensor:
    """A copy of rows that lie by rank, with those for one place of all nodes together."""
    parts = torch.split(source, list(sent))
    return torch.cat([part for place in range(each) for part in parts[place::each]])


def _by_node(held: torch.Tensor, relayed: Sequence[Sequence[int]]) -> torch.Tensor:
    """A copy of rows that lie by their sender and of each by node, with those for a node
    together."""
    pieces, nodes = torch.split(held, [count for row in relayed for count in row]), len(relayed[0])
    return torch.cat([piece for n in range(nodes) for piece in pieces[n::nodes]])


def _relayed(sent: Sequence[int], group: Group, each: int, device: torch.device) -> list[list[int]]:
    """How many rows each rank of this node has for this rank's place on every node."""
    nodes, node, _ = place_of(group, each)
    counts = torch.tensor(sent, device=device).view(nodes, each).t().contiguous()
    found = torch.empty_like(counts)
    splits = _of_node(node, each, [nodes] * each, group.size())
    exchange(found.view(-1), counts.view(-1), splits, splits, group).wait()
    held: list[list[int]] = found.tolist()
    return held


def exchange(
    target: torch.Tensor,
    source: torch.Tensor,
    came: Sequence[int],
    sent: Sequence[int],
    group: Group,
) -> dist.Work:
    """Start an all-to-all of so many rows from each rank and to it."""
    work: dist.Work | None = dist.all_to_all_single(
        target, source, list(came), list(sent), group, async_op=True
    )
    assert work is not None, "the rank is a member"
    return work


def _of_node(node: int, each: int, counts: Sequence[int], ranks: int) -> list[int]:
    """Counts for the ranks of one node, zero for all others."""
    return [counts[r % each] if r // each == node else 0 for r in range(ranks)]


def _of_place(local: int, each: int, counts: Sequence[int]) -> list[int]:
    """Counts for the ranks of one place on every node, zero for all others."""
    return [count if place == local else 0 for count in counts for place in range(each)]
