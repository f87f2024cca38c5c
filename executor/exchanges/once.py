"""Rows of a token sent once to each node with experts of it, and there once to each rank.

A rank has a row for each expert of a token; where several of its experts are on one node, these
are alike, so that one goes to the rank of its own place on that node, which passes it on, once to
each rank with experts of the token, and this one copies it. On the way back a rank sums the rows of
a token, the node's rank of the sender's place sums those, and one comes back for each node: it lies
where the first of the token's rows for that node was, and the others' places are zeros, so that
their sum is that of all rows. Which row is whose goes ahead of the rows, in numbers.
Sources: DeepSeek-V3 (2412.19437), section 3.2.2; X-MoE (2508.13337), redundancy-bypassing dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from executor.exchanges.nodes import place_of
from executor.exchanges.two_steps import exchange
from executor.kernels.experts import EMPTY
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


@dataclass(frozen=True, slots=True)
class Hop:
    """One of the two ways: which of `rows` rows go, by rank, how many to each rank, and from it."""

    rows: int
    chosen: torch.Tensor
    sent: list[int]
    came: list[int]
    group: Group

    def there(self, rows: torch.Tensor) -> torch.Tensor:
        """What comes when all ranks send theirs, of the rows that go."""
        found = rows.new_empty((sum(self.came), rows.shape[1]))
        exchange(found, rows, self.came, self.sent, self.group).wait()
        return found

    def back(self, rows: torch.Tensor) -> torch.Tensor:
        """What comes back for the rows that went."""
        came = rows.new_empty((len(self.chosen), rows.shape[1]))
        exchange(came, rows, self.sent, self.came, self.group).wait()
        return came


def exchange_once(
    op: Op,
    pair: tuple[torch.Tensor, torch.Tensor],
    group: Group,
    about: Sequence[torch.Tensor],
    each: int,
) -> Done:
    """Send rows to their experts, or what came of them back, between nodes of `each` ranks; `about`
    has how many rows go to each expert of each rank and come from it, and which choice each is."""
    source, target = pair
    returns = op.attributes[FOR_NODES] == BACK
    order = about[-1]
    out, back = about[1::-1] if returns else about[:2]
    sent, came = (counts.view(group.size(), -1).sum(1) for counts in (out, back))
    if op.attributes["even"]:
        sent = came = torch.full_like(sent, len(order) // group.size())
    hops, index, entries = _hops(order, op.attributes["topk"], sent, group, each)
    first, held = came.cumsum(0) - came, sum(hops[-1].came)
    which = torch.full((len(source if returns else target),), held, device=order.device)
    which[first[entries[:, SENDER]] + entries[:, PLACE]] = index
    del entries
    if returns:
        _sum_back(hops, which, source, target)
    else:
        _send(hops, which, source, target)
    return Done()


# No more than two copies of rows at once beside both operands.
def _send(hops: list[Hop], which: torch.Tensor, rows: torch.Tensor, target: torch.Tensor) -> None:
    """Send rows by all hops, and copy each to its places; `which` has the row of each place, one
    more than the last where none comes, and zeros are to be."""
    for hop in hops:
        rows = rows[hop.chosen]
        rows = hop.there(rows)
    if not len(rows):
        target.zero_()
        return
    torch.index_select(rows, 0, which.clamp_max(len(rows) - 1), out=target)
    target.index_fill_(0, (which == len(rows)).nonzero()[:, 0], 0)


def _sum_back(
    hops: list[Hop], which: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> None:
    """Send back by all hops what came of rows, summed before each for the rows that came there;
    zeros for all rows but the first of each token."""
    last = hops[-1]
    rows = source.new_zeros((sum(last.came) + 1, source.shape[1])).index_add_(0, which, source)
    rows = last.back(rows[:-1])
    for hop, after in zip(hops[-2::-1], hops[:0:-1], strict=True):
        rows = rows.new_zeros((after.rows, rows.shape[1])).index_add_(0, after.chosen, rows)
        rows = hop.back(rows)
    target.zero_().index_add_(0, hops[0].chosen, rows)


def _hops(
    order: torch.Tensor, topk: int, sent: torch.Tensor, group: Group, each: int
) -> tuple[list[Hop], torch.Tensor, torch.Tensor]:
    """The two hops of all rows, which of the rows that came behind them each entry that ends here
    has, and these entries."""
    _, node, local = place_of(group, each)
    numbers = torch.arange(len(order), device=order.device)
    ranks = torch.arange(len(sent), device=order.device)
    to = ranks.repeat_interleave(sent)
    place = numbers - (sent.cumsum(0) - sent)[to]
    sender = torch.full_like(to, dist.get_rank(group))
    filled = order != EMPTY
    entries = torch.stack((to, sender, place), 1)[filled]
    tokens, own = (order // topk)[filled], numbers[filled]
    peers = entries[:, DESTINATION] // each * each + local
    across, index, entries = _hop(len(order), tokens, own, peers, entries, group)
    peers = node * each + entries[:, DESTINATION] % each
    inside, index, entries = _hop(sum(across.came), index, index, peers, entries, group)
    return [across, inside], index, entries


def _hop(
    rows: int,
    tokens: torch.Tensor,
    own: torch.Tensor,
    peers: torch.Tensor,
    entries: torch.Tensor,
    group: Group,
) -> tuple[Hop, torch.Tensor, torch.Tensor]:
    """A hop of entries to their next ranks, each token's first row for each of these; returns it,
    and for each entry that comes its row among those that come, and itself."""
    chosen, sent, told = [], [], []
    for rank in range(group.size()):
        mine = (peers == rank).nonzero()[:, 0]
        distinct, which = torch.unique(tokens[mine], return_inverse=True)
        first = torch.full_like(distinct, rows)
        chosen.append(first.scatter_reduce_(0, which, own[mine], "amin"))
        sent.append((len(distinct), len(mine)))
        told.append(torch.cat((which[:, None], entries[mine]), 1))
    out = torch.tensor(sent, device=peers.device)
    counts = torch.empty_like(out)
    ones = [1] * group.size()
    exchange(counts, out, ones, ones, group).wait()
    came, numbers = counts.t().tolist()
    table = entries.new_empty((sum(numbers), 1 + entries.shape[1]))
    exchange(table, torch.cat(told), numbers, [n for _, n in sent], group).wait()
    before = (counts[:, 0].cumsum(0) - counts[:, 0]).repeat_interleave(counts[:, 1])
    hop = Hop(rows, torch.cat(chosen), [n for n, _ in sent], came, group)
    return hop, table[:, 0] + before, table[:, 1:]
