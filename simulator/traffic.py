"""Collectives in flight at once: each goes at the pace that the others leave it.

A rank's `Flying` names what it has in flight. A collective that would last T ticks if its ranks had
the same in flight all the time does 1/T of itself per tick; where its ranks differ the slowest
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

import simpy
from simpy.events import EventPriority

from simulator.network import Flying, Network
from workload.op import Op

LAST = EventPriority(2)


class _TickEnd(simpy.Event):
    """An event that comes after all others of the present tick."""

    def __init__(self, env: simpy.Environment, then: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        self.callbacks = [then]
        env.schedule(self, LAST)


@dataclass(eq=False, slots=True)
class Flight:
    """One collective of one meeting on its way: what is left of it, and its pace since when.

    `lasts` is T of the pace, 0 before it has one; `changes` counts the paces it had.
    """

    op: Op
    classes: Sequence[int]
    alone: int
    left: int
    landed: Callable[[], None]
    since: int = 0
    lasts: int = 0
    changes: int = 0
    is_over: bool = False


class Traffic:
    """What is in flight on each rank class."""

    def __init__(self, env: simpy.Environment, network: Network) -> None:
        self._env = env
        self._network = network
        self._flying: list[dict[Flight, None]] = [{} for _ in network.ranks]
        self._disturbed: dict[Flight, None] = {}

    def begin(self, op: Op, classes: Sequence[int], landed: Callable[[], None]) -> None:
        """Send a collective of these classes, which takes any time, on its way; once it is over,
        `landed` is called."""
        alone = self._network.ticks(op)[classes[0]]
        flight = Flight(op, classes, alone, alone, landed)
        for number in classes:
            self._flying[number][flight] = None
        self._disturb(classes)

    def _disturb(self, classes: Sequence[int]) -> None:
        if not self._disturbed:
            _TickEnd(self._env, self._settle)
        for number in classes:
            self._disturbed.update(self._flying[number])

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

    def _lasts(self, flight: Flight) -> int:
        op, ticks = flight.op, self._network.ticks
        return max(ticks(op, self._flying_on(number))[number] for number in flight.classes)

    def _flying_on(self, number: int) -> Flying:
        flying = self._flying[number]
        return tuple(sorted(each.op.axes for each in flying)) if len(flying) > 1 else ()

    def _land(self, flight: Flight, changes: int, _: simpy.Event) -> None:
        if changes != flight.changes:
            return
        flight.is_over = True
        for number in flight.classes:
            del self._flying[number][flight]
        self._disturb(flight.classes)
        flight.landed()
