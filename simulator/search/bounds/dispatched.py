"""The least that all-to-alls of experts take, whichever dispatcher a plan has.

A dispatcher changes no op of a program, but how long its all-to-alls take and how much they send.
So plans that differ in it alone share one lower bound, in which each all-to-all takes as long as by
the fastest of their dispatchers; each of them is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from simulator.ranks.fabric import times_steps
from simulator.search.bounds.nonmonotonic_latency import may_fall
from simulator.search.space import Space
from topologies.machine import Machine
from topologies.records import record
from topologies.session import session_cached
from workload.exchange.own_rows import COLLECTIVES
from workload.exchange.sent_bytes import share_sent_once
from workload.exchange.table import USUAL, Copies, Exchange
from workload.gpt import GPT
from workload.op import KEYS_EXCHANGE, Op
from workload.plan import Plan
from workload.sizes.arrays import Bytes, Indices
from workload.sizes.rounding import scaled
from workload.transport import ALL_TO_ALL, IN_STEPS, Transport

# What the least share that is sent once follows from.
SPLITS = ("tp", "y", "z", "cp", "pp", "ep", "etp")


@record(slots=False)
class Dispatched:
    """How plans of a space may send rows to experts; `_shares` keeps shares by sizes of axes."""

    space: Space
    machine: Machine
    _shares: dict[tuple[Copies, tuple[int, ...]], float] = field(default_factory=dict)

    @staticmethod
    def concerns(op: Op) -> bool:
        """Whether a dispatcher changes how long an op takes."""
        return op.kind == "all_to_all" and op.purpose != KEYS_EXCHANGE

    @cached_property
    def has_bounds(self) -> bool:
        """Whether the fewest bytes that a dispatcher may send take least time."""
        fewer = self.own_rows or any(each.once for each in self._exchanges)
        return not (fewer and may_fall(self.machine, "all_to_all"))

    @property
    def own_rows(self) -> bool:
        """Whether ranks of x send their own rows alone, but where these are sent once."""
        return self.space.problem.stack.usual_exchange.own_rows

    @cached_property
    def _exchanges(self) -> Sequence[Exchange]:
        """The exchanges of the space's dispatchers that are told apart here."""
        problem = self.space.problem
        each = (problem.stack.exchange(_plan(name, {"ep": 2})) for name in problem.dispatchers)
        return list({(one.in_steps, one.copies, one.kernels): one for one in each}.values())

    def ways(self, rows: Indices, nbytes: Bytes) -> Iterator[tuple[Transport, Bytes]]:
        """The different ways in which so many bytes of each row may be sent: how they travel, and
        how many of them."""
        for exchange in self._exchanges:
            sent = self._sent_once(rows, nbytes, exchange.copies) if exchange.once else nbytes
            if exchange.own_rows:
                sent = self._own_rows(rows, nbytes)
            yield from ((transport, sent) for transport in self._transports(exchange))

    def _transports(self, exchange: Exchange) -> Sequence[Transport]:
        """How rows may travel: in steps, where these have a time (a plan that is predicted
        elsewhere has nothing left of one of them), by the stack's own kernels at their best, or by
        the library."""
        if exchange.in_steps and times_steps(self.machine):
            return [IN_STEPS]
        rates = self.space.problem.stack.kernel_rates(self.machine) if exchange.kernels else None
        return [ALL_TO_ALL] if rates is None else rates.best()

    def _sent_once(self, rows: Indices, nbytes: Bytes, copies: Copies) -> Bytes:
        sizes = np.stack([self.space.columns[key][rows] for key in SPLITS])
        table, which = np.unique(sizes, axis=1, return_inverse=True)
        result = np.zeros_like(nbytes)
        for number, each in enumerate(table.T.tolist()):
            chosen = which.ravel() == number
            result[chosen] = scaled(nbytes[chosen], self._share(tuple(each), copies))
        return result

    def gathered(self, rows: Indices, op: Op, nbytes: Bytes) -> Bytes:
        """The fewest bytes of a collective: of one that gathers or sums experts' tokens, as where
        ranks with parts of the same experts have tokens of their own."""
        is_own = self.own_rows and op.label in COLLECTIVES
        return self._own_rows(rows, nbytes) if is_own else nbytes

    def _own_rows(self, rows: Indices, nbytes: Bytes) -> Bytes:
        """As where ranks with parts of the same experts have rows of their own, with which a plan
        sends least; what these gather then is no less than what the program gathers."""
        tensor = self.space.columns["etp"][rows]
        return nbytes // np.where(tensor > 0, tensor, self.space.columns["tp"][rows])

    def _share(self, sizes: tuple[int, ...], copies: Copies) -> float:
        if (copies, sizes) not in self._shares:
            plan = _plan(USUAL, dict(zip(SPLITS, sizes, strict=True)))
            gpt = self.space.problem.gpt
            own = self.space.problem.stack.own_kernels
            in_a_row = bool(own.get("choices_in_a_row", False))
            per_node = self.machine.segments(plan.grid.ranks).per_node
            self._shares[copies, sizes] = least_share_sent_once(
                gpt, plan, per_node, copies, in_a_row=in_a_row
            )
        return self._shares[copies, sizes]


def least_share_sent_once(
    gpt: GPT, plan: Plan, per_node: int, copies: Copies = Copies.OF_NODES, *, in_a_row: bool = False
) -> float:
    """What `share_sent_once` is at least in any order of ranks: on as few nodes as hold the group
    or, unless no other axis, nor ranks with parts of the same experts, can come between its ranks,
    on any number of nodes. More nodes need fewer copies where groups of experts fill them. Of
    experts `in_a_row` one part may have all of a token's."""
    if in_a_row:
        return 1 / gpt.moe.topk
    apart = plan.tp * plan.y * plan.z * plan.cp * plan.pp * plan.expert_parts > 1
    return _least_share(gpt, copies, plan.ep, per_node, apart)


@session_cached(1024)
def _least_share(gpt: GPT, copies: Copies, ranks: int, per_node: int, apart: bool) -> float:
    nodes = [-(-ranks // per_node)]
    if apart:
        fewest = max(*nodes, 2)
        most = ranks if (gpt.moe.router_groups or 1) > 1 else fewest
        nodes += range(fewest, most + 1)
    return min(share_sent_once(gpt, copies.parts(ranks, count)) for count in nodes)


def _plan(dispatcher: str, sizes: Mapping[str, int]) -> Plan:
    """A plan that splits experts so, and sends rows to them so."""
    ranks, tensor = sizes["ep"], sizes.get("etp", 0)
    x, y, z, context, pp = (sizes.get(axis, 1) for axis in ("tp", "y", "z", "cp", "pp"))
    data = ranks * context * max(tensor, 1)
    return Plan.of(
        tp=x,
        y=y,
        z=z,
        cp=context,
        pp=pp,
        dp=data,
        ep=ranks,
        etp=tensor,
        batch=data * z,
        mbs=1,
        sp=x > 1 and tensor not in (0, x),
        dispatcher=dispatcher,
    )
