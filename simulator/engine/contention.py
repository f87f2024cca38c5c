"""Contention: collectives in flight on the same ranks slow each other where they share links.

Rate. `InFlight` names the axes of the collectives that a rank has in flight. A collective that
would last T ticks if this stayed so from its begin to its end proceeds at the rate 1/T; where its
ranks differ, the largest T counts, since a ring is as slow as its slowest member. Rates change when
a collective begins or ends on one of these ranks.

Rounding. The rest of a collective is counted in whole ticks of its isolated duration A: t ticks at
the rate 1/T complete floor(t * A / T) of them, and the collective ends at the first tick with none
left.

Invariant: timings depend on relative times alone, not on the order of events within a tick. Rates
are set once per tick, after all other events of that tick, and a rate that comes out unchanged is
not touched (its rest is not rounded again). Shifting all begins by the same time therefore shifts
all ends by it, which the proofs of repetition build on.

Cost: one SimPy event per change of a rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import simpy
from simpy.events import EventPriority

from simulator.ranks.classes import InFlight, RankClasses
from workload.op import Op

LAST = EventPriority(2)
Goal = TypeVar("Goal")


class _TickEnd(simpy.Event):
    """An event that comes after all others of the present tick."""

    def __init__(self, env: simpy.Environment, then: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        self.callbacks = [then]
        env.schedule(self, LAST)


@dataclass(eq=False, slots=True)
class Transfer(Generic[Goal]):
    """One collective in flight between some rank classes.

    `alone` is its isolated duration, `left` the part of it that was left at `since`; `lasts` is T
    of its rate since then (0: none yet) and `changes` counts its rates. `lasts_in` has T of every
    class for what it may have in flight; `goal` is handed back at the end.
    """

    op: Op
    classes: Sequence[int]
    alone: int
    left: int
    goal: Goal
    lasts_in: dict[InFlight, list[int]]
    since: int = 0
    lasts: int = 0
    changes: int = 0
    is_over: bool = False


class Contention(Generic[Goal]):
    """The collectives in flight on each rank class, on SimPy's clock."""

    def __init__(
        self, env: simpy.Environment, network: RankClasses, ended: Callable[[Goal], None]
    ) -> None:
        self._env, self._ended = env, ended
        self._network = network
        self._transfers: list[dict[Transfer[Goal], None]] = [{} for _ in network.ranks]
        self._in_flight: list[InFlight] = [()] * len(network.ranks)
        self._lasts_in: dict[tuple[object, ...], dict[InFlight, list[int]]] = {}
        self._disturbed: dict[Transfer[Goal], None] = {}

    def begin(self, op: Op, classes: Sequence[int], goal: Goal) -> None:
        """Start a collective of these classes, which takes time; `ended` is called with its
        goal."""
        alone = self._network.ticks(op)[classes[0]]
        lasts_in = self._lasts_in.setdefault((op.transport, op.axes, op.nbytes), {})
        transfer = Transfer(op, classes, alone, alone, goal, lasts_in)
        for number in classes:
            self._transfers[number][transfer] = None
            self._in_flight[number] = self._axes_in_flight(number)
        self._disturb(classes)

    def _disturb(self, classes: Sequence[int]) -> None:
        is_set = bool(self._disturbed)
        for number in classes:
            self._disturbed.update(self._transfers[number])
        if self._disturbed and not is_set:
            _TickEnd(self._env, self._settle)

    def _settle(self, _: simpy.Event) -> None:
        """Set the rates anew at the end of a tick in which collectives began or ended."""
        now = int(self._env.now)
        for transfer in self._disturbed:
            if transfer.is_over or (lasts := self._lasts(transfer)) == transfer.lasts:
                continue
            if transfer.lasts:
                transfer.left -= (now - transfer.since) * transfer.alone // transfer.lasts
            transfer.since, transfer.lasts = now, lasts
            transfer.changes += 1
            ends_in = -(-transfer.left * lasts // transfer.alone)
            timeout = self._env.timeout(ends_in)
            timeout.callbacks = [partial(self._end_transfer, transfer, transfer.changes)]
        self._disturbed = {}

    def _lasts(self, transfer: Transfer[Goal]) -> int:
        """T of the present rate: the largest of its classes."""
        longest = 0
        for number in transfer.classes:
            in_flight = self._in_flight[number]
            if in_flight not in transfer.lasts_in:
                transfer.lasts_in[in_flight] = self._network.ticks(transfer.op, in_flight)
            longest = max(longest, transfer.lasts_in[in_flight][number])
        return longest

    def _axes_in_flight(self, number: int) -> InFlight:
        return tuple(sorted(transfer.op.traffic for transfer in self._transfers[number]))

    def _end_transfer(self, transfer: Transfer[Goal], changes: int, _: simpy.Event) -> None:
        if changes != transfer.changes:
            return
        transfer.is_over = True
        for number in transfer.classes:
            del self._transfers[number][transfer]
            self._in_flight[number] = self._axes_in_flight(number)
        self._disturb(transfer.classes)
        self._ended(transfer.goal)
