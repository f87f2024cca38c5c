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
from simulator.stacks.exchange import (
    OWN,
    least_share_sent_once,
    most_reached,
    sends_once,
)
from topologies.machine import Machine
from topologies.records import record
from workload.exchange.table import HIERARCHICAL, USUAL
from workload.op import KEYS_EXCHANGE, Op
from workload.passes.exchanges.own_rows import COLLECTIVES
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
    _shares: dict[tuple[int, ...], float] = field(default_factory=dict)

    @staticmethod
    def concerns(op: Op) -> bool:
        """Whether a dispatcher changes how long an op takes."""
        return op.kind == "all_to_all" and op.purpose != KEYS_EXCHANGE

    @cached_property
    def has_bounds(self) -> bool:
        """Whether the fewest bytes that a dispatcher may send take least time."""
        exchange = self.space.problem.stack.own_kernels.get("exchange", "")
        each = (_plan(name, {"ep": 2}) for name in self.space.problem.dispatchers)
        fewer = exchange == OWN or any(sends_once(plan, exchange) for plan in each)
        return not (fewer and may_fall(self.machine, "all_to_all"))

    def ways(self, rows: Indices, nbytes: Bytes) -> Iterator[tuple[Transport, Bytes]]:
        """The different ways in which so many bytes of each row may be sent: how they travel, and
        how many of them."""
        problem = self.space.problem
        exchange = problem.stack.own_kernels.get("exchange", "")
        found = {
            (each == HIERARCHICAL, sends_once(_plan(each, {"ep": 2}), exchange))
            for each in problem.dispatchers
        }
        for in_steps, once in sorted(found):
            sent = self._sent_once(rows, nbytes) if once else nbytes
            if exchange == OWN and not once:
                sent = self._own_rows(rows, nbytes)
            senders = [self._in_steps] if in_steps else self._senders if once else [ALL_TO_ALL]
            yield from ((sender, sent) for sender in senders)

    @cached_property
    def _in_steps(self) -> Transport:
        """Where steps have no time, a plan that is predicted has nothing left of one of them."""
        return IN_STEPS if times_steps(self.machine) else ALL_TO_ALL

    @cached_property
    def _senders(self) -> Sequence[Transport]:
        """What sends a row once: the stack's own kernels at their best, or the library."""
        stack = self.space.problem.stack
        if "exchange_kernels" not in stack.own_kernels:
            return [ALL_TO_ALL]
        return most_reached(stack.of_exchanges(self.machine))

    def _sent_once(self, rows: Indices, nbytes: Bytes) -> Bytes:
        sizes = np.stack([self.space.columns[key][rows] for key in SPLITS])
        table, which = np.unique(sizes, axis=1, return_inverse=True)
        result = np.zeros_like(nbytes)
        for number, each in enumerate(table.T.tolist()):
            chosen = which.ravel() == number
            result[chosen] = scaled(nbytes[chosen], self._share(tuple(each)))
        return result

    def gathered(self, rows: Indices, op: Op, nbytes: Bytes) -> Bytes:
        """The fewest bytes of a collective: of one that gathers or sums experts' tokens, as where
        ranks with parts of the same experts have tokens of their own."""
        exchange = self.space.problem.stack.own_kernels.get("exchange", "")
        is_own = exchange == OWN and op.label in COLLECTIVES
        return self._own_rows(rows, nbytes) if is_own else nbytes

    def _own_rows(self, rows: Indices, nbytes: Bytes) -> Bytes:
        """As where ranks with parts of the same experts have rows of their own, with which a plan
        sends least; what these gather then is no less than what the program gathers."""
        tensor = self.space.columns["etp"][rows]
        return nbytes // np.where(tensor > 0, tensor, self.space.columns["tp"][rows])

    def _share(self, sizes: tuple[int, ...]) -> float:
        if sizes not in self._shares:
            plan = _plan(USUAL, dict(zip(SPLITS, sizes, strict=True)))
            gpt = self.space.problem.gpt
            own = self.space.problem.stack.own_kernels
            in_a_row = bool(own.get("choices_in_a_row", False))
            self._shares[sizes] = least_share_sent_once(gpt, plan, self.machine, in_a_row=in_a_row)
        return self._shares[sizes]


def _plan(dispatcher: str, sizes: Mapping[str, int]) -> Plan:
    """A plan that splits experts so, and sends rows to them so."""
    ranks, tensor = sizes["ep"], sizes.get("etp", 0)
    x, y, z, context, pp = (sizes.get(axis, 1) for axis in ("tp", "y", "z", "cp", "pp"))
    data = ranks * context * max(tensor, 1)
    return Plan(
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
