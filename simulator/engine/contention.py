"""Collectives in flight at once: each goes at the pace that the others leave it.

A rank's `InFlight` names what it has in flight. A collective that would last T ticks if its ranks
had the same in flight all the time does 1/T of itself per tick; where its ranks differ the slowest
counts, since a ring is as slow as its slowest member. When a collective begins or ends on a rank,
the paces of the others there change.

What is left of a collective is counted in whole ticks of its time alone: t ticks at pace 1/T do
floor(t * alone / T) of them, and its end is the first tick at which none are left. Paces change at
the end of a tick, after everything that happens in it, and only if they differ then: so neither the
order of events within a tick nor a change that is taken back leaves a trace, and timings depend on
relative times alone.
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
    """One collective of one meeting on its way: what is left of it, and its pace since when.

    `lasts` is T of the pace, 0 before it has one; `changes` counts the paces it had.
    """

    op: Op
    classes: Sequence[int]
    alone: int
    left: int
    goal: Goal
    paces: dict[InFlight, list[int]]
    since: int = 0
    lasts: int = 0
    changes: int = 0
    is_over: bool = False


class Contention(Generic[Goal]):
    """What is in flight on each rank class."""

    def __init__(
        self, env: simpy.Environment, network: RankClasses, landed: Callable[[Goal], None]
    ) -> None:
        self._env, self._landed = env, landed
        self._network = network
        self._flying: list[dict[Transfer[Goal], None]] = [{} for _ in network.ranks]
        self._crowds: list[InFlight] = [()] * len(network.ranks)
        self._paces: dict[tuple[object, ...], dict[InFlight, list[int]]] = {}
        self._disturbed: dict[Transfer[Goal], None] = {}

    def begin(self, op: Op, classes: Sequence[int], goal: Goal) -> None:
        """Send a collective of these classes, which takes any time, on its way; once it is over,
        its goal is told so."""
        alone = self._network.ticks(op)[classes[0]]
        paces = self._paces.setdefault((op.kind, op.axes, op.nbytes), {})
        flight = Transfer(op, classes, alone, alone, goal, paces)
        for number in classes:
            self._flying[number][flight] = None
            self._crowds[number] = self._crowd(number)
        self._disturb(classes)

    def _disturb(self, classes: Sequence[int]) -> None:
        is_set = bool(self._disturbed)
        for number in classes:
            self._disturbed.update(self._flying[number])
        if self._disturbed and not is_set:
            _TickEnd(self._env, self._settle)

    def _settle(self, _: simpy.Event) -> None:
        """Change the paces at the end of a tick in which collectives began or ended."""
        now = int(self._env.now)
        for flight in self._disturbed:
            if flight.is_over or (lasts := self._lasts(flight)) == flight.lasts:
                continue
            if flight.lasts:
                flight.left -= (now - flight.since) * flight.alone // flight.lasts
            flight.since, flight.lasts = now, lasts
            flight.changes += 1
            ends_in = -(-flight.left * lasts // flight.alone)
            landing = self._env.timeout(ends_in)
            landing.callbacks = [partial(self._land, flight, flight.changes)]
        self._disturbed = {}

    def _lasts(self, flight: Transfer[Goal]) -> int:
        """How long it would last in the crowd that it is in; the slowest of its classes counts."""
        longest = 0
        for number in flight.classes:
            crowd = self._crowds[number]
            if crowd not in flight.paces:
                flight.paces[crowd] = self._network.ticks(flight.op, crowd)
            longest = max(longest, flight.paces[crowd][number])
        return longest

    def _crowd(self, number: int) -> InFlight:
        return tuple(sorted(flight.op.axes for flight in self._flying[number]))

    def _land(self, flight: Transfer[Goal], changes: int, _: simpy.Event) -> None:
        if changes != flight.changes:
            return
        flight.is_over = True
        for number in flight.classes:
            del self._flying[number][flight]
            self._crowds[number] = self._crowd(number)
        self._disturb(flight.classes)
        self._landed(flight.goal)
