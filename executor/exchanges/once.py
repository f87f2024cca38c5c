"""Rows of a token sent once to each node with experts of it, and there once to each rank.

A rank has a row for each expert of a token; where several of its experts are on one node, these
are alike, so that one goes to the rank of its own place on that node, which passes it on, once to
each rank with experts of the token, and this one copies it. On the way back a rank sums the rows of
a token, the node's rank of the sender's place sums those, and one comes back for each node: it lies
where the first of the token's rows for that node was, and the others' places are zeros, so that
their sum is that of all rows. Which row is whose goes ahead of the rows, in numbers. Of
dispatcher=once_per_rank every rank counts as a node.
Sources: DeepSeek-V3 (2412.19437), section 3.2.2; X-MoE (2508.13337), redundancy-bypassing dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from executor.exchanges.nodes import Nodes
from executor.exchanges.plain import exchange
from executor.kernels.experts import EMPTY
from topologies.records import record
from workload.op import BACK, FOR_NODES, Op

Group = dist.ProcessGroup
DESTINATION, SENDER, PLACE = range(3)  # of an entry: two ranks, and which row of the one it is


class Done:
    """Work that was awaited already."""

    def wait(self) -> None:
        """Nothing is left to wait for."""

    def get_future(self) -> torch.futures.Future[None]:
        """What is done."""
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future


@record
class Hop:
    """One of the two ways: which rows go (`chosen`, by rank), how many of them to each rank of the
    group, and how many come from each. Rows are (rows, width)."""

    chosen: torch.Tensor
    sent: list[int]
    came: list[int]
    group: Group

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """What comes when all ranks send theirs, of the rows that go."""
        found = rows.new_empty((sum(self.came), rows.shape[1]))
        exchange(rows, found, (self.sent, self.came), self.group).wait()
        return found

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """What comes back for the rows that went."""
        found = rows.new_empty((sum(self.sent), rows.shape[1]))
        exchange(rows, found, (self.came, self.sent), self.group).wait()
        return found


def exchange_once(
    op: Op,
    pair: tuple[torch.Tensor, torch.Tensor],
    group: Group,
    about: Sequence[torch.Tensor],
    local_world_size: int,
) -> Done:
    """Send rows to their experts, or what came of them back, in a group that has `local_world_size`
    ranks on each node.

    The `pair` is what is sent and what comes, (rows, width) each, by rank and then by expert.
    `about` has how many rows go to each expert of each rank, and come from it, both by rank, and
    which choice (token * topk + number, or EMPTY) each row that goes is.
    """
    source, target = pair
    returns = op.attributes[FOR_NODES] == BACK
    order = about[-1]
    out, back = about[1::-1] if returns else about[:2]
    sent, came = (counts.view(group.size(), -1).sum(1) for counts in (out, back))
    if op.attributes["even"]:
        sent = came = torch.full_like(sent, len(order) // group.size())
    at = Nodes.of(group, local_world_size)
    across, inside, index, entries = _hops(order, op.attributes["topk"], sent, group, at)
    first, held = came.cumsum(0) - came, sum(inside.came)
    which = torch.full((len(source if returns else target),), held, device=order.device)
    which[first[entries[:, SENDER]] + entries[:, PLACE]] = index
    del entries
    if returns:
        _sum_back(across, inside, which, source, target)
    else:
        _send(across, inside, which, source, target)
    return Done()


# No more than two copies of rows at once beside both operands, so each takes the name of the last.
def _send(
    across: Hop, inside: Hop, which: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> None:
    """Send rows by both hops, and copy each to its places; `which` has the row of each place, one
    more than the last where none comes, and zeros are to be."""
    rows = source[across.chosen]
    rows = across.there(rows)
    rows = rows[inside.chosen]
    rows = inside.there(rows)
    if not len(rows):
        target.zero_()
        return
    torch.index_select(rows, 0, which.clamp_max(len(rows) - 1), out=target)
    target.index_fill_(0, (which == len(rows)).nonzero()[:, 0], 0)


def _sum_back(
    across: Hop, inside: Hop, which: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> None:
    """Send back by both hops what came of rows, summed before each for the rows that came there;
    zeros for all rows but the first of each token."""
    rows = _summed(source, which, sum(inside.came) + 1)
    rows = inside.back(rows[:-1])
    rows = _summed(rows, inside.chosen, sum(across.came))
    rows = across.back(rows)
    target.zero_().index_add_(0, across.chosen, rows)


def _summed(rows: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
    """Rows at so many places, (count, width), summed where several have one place."""
    return rows.new_zeros((count, rows.shape[1])).index_add_(0, places, rows)


def _hops(
    order: torch.Tensor, topk: int, sent: torch.Tensor, group: Group, at: Nodes
) -> tuple[Hop, Hop, torch.Tensor, torch.Tensor]:
    """The hop across nodes and the one inside them, which of the rows that came behind them each
    entry that ends here has, and these entries, (entries, 3)."""
    numbers = torch.arange(len(order), device=order.device)
    ranks = torch.arange(len(sent), device=order.device)
    to = ranks.repeat_interleave(sent)
    place = numbers - (sent.cumsum(0) - sent)[to]
    sender = torch.full_like(to, dist.get_rank(group))
    filled = order != EMPTY
    entries = torch.stack((to, sender, place), 1)[filled]
    tokens, own = (order // topk)[filled], numbers[filled]
    each = at.local_world_size
    peers = entries[:, DESTINATION] // each * each + at.local_rank
    across, index, entries = _hop(tokens, own, peers, entries, group)
    peers = at.node * each + entries[:, DESTINATION] % each
    inside, index, entries = _hop(index, index, peers, entries, group)
    return across, inside, index, entries


def _hop(
    tokens: torch.Tensor,
    own: torch.Tensor,
    peers: torch.Tensor,
    entries: torch.Tensor,
    group: Group,
) -> tuple[Hop, torch.Tensor, torch.Tensor]:
    """A hop of entries to their next ranks (`peers`), each token's first row (the least of its
    `own`) for each of these; returns it, and for each entry that comes its row among those that
    come, and itself."""
    chosen, sent, told = [], [], []
    for rank in range(group.size()):
        mine = (peers == rank).nonzero()[:, 0]
        distinct, which = torch.unique(tokens[mine], return_inverse=True)
        first = torch.empty_like(distinct)
        chosen.append(first.scatter_reduce_(0, which, own[mine], "amin", include_self=False))
        sent.append((len(distinct), len(mine)))
        told.append(torch.cat((which[:, None], entries[mine]), 1))
    out = torch.tensor(sent, device=peers.device)
    counts = torch.empty_like(out)
    exchange(out, counts, None, group).wait()
    came, numbers = counts.t().tolist()
    table = entries.new_empty((sum(numbers), 1 + entries.shape[1]))
    exchange(torch.cat(told), table, ([n for _, n in sent], numbers), group).wait()
    before = (counts[:, 0].cumsum(0) - counts[:, 0]).repeat_interleave(counts[:, 1])
    hop = Hop(torch.cat(chosen), [n for n, _ in sent], came, group)
    return hop, table[:, 0] + before, table[:, 1:]
