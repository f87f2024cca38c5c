"""What collectives take from the compute that runs beside them.

While a collective is in flight, compute on its device loses a share s of the time. How long compute
runs beside it is not known before a step is played, so that is counted from what ops take alone. A
collective that takes T runs beside the compute ops issued after it: up to the first that waits for
it, to the next collective of its stream, and to the end of the slot that the first of them is in.
If these take W, they run beside it for W/(1 - s) at most, so it takes s * min(T, W/(1 - s)) from
them, charged to the first. Not modelled: compute that starts late and so runs beside a later part
of it, or beside nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from simulator.ranks.classes import Ints
from workload.dataflow import Waits
from workload.op import COMPUTE, NONE, Op

FENCE = "fence"
Ticks = TypeVar("Ticks", int, Ints)
CarryIn = Mapping[
    str, Any
]  # by stream, how long its collectives take that are under way at the begin


@dataclass(slots=True)
class OverlapWindow:
    """Collectives of a stream with no compute between them: their places, and those of the `first`
    compute op beside them and of the `last`; both -1 if there is none. With `due` others were under
    way before all ops."""

    stream: str
    members: list[int] = field(default_factory=list)
    due: bool = False
    first: int = -1
    last: int = -1


@dataclass(frozen=True)
class Interference:
    """The flights that have compute beside them, and those at the end that have none yet.

    `computes` has for each op whether it is compute: no collective, and no fence, which takes no
    time that could grow.
    """

    flights: Sequence[OverlapWindow]
    left: Sequence[OverlapWindow]
    computes: Sequence[bool]

    def charged(
        self,
        alone: Sequence[Ticks],
        share: float,
        least: Callable[[Any, Any], Any],
        rounded: Callable[[Any], Ticks],
        due: CarryIn | None = None,
    ) -> list[Ticks]:
        """Ticks of ops (numbers, or arrays with one for each of many plans) with what flights take
        from them; `due` is what other flights have left."""
        result = list(alone)
        if not share:
            return result
        until: list[Any] = [0] * (len(alone) + 1)
        for index, computes in enumerate(self.computes):
            until[index + 1] = until[index] + (alone[index] if computes else 0)
        for flight in self.flights:
            beside = (until[flight.last + 1] - until[flight.first]) / (1 - share)
            lasts = self._lasts(flight, alone, due or {})
            result[flight.first] = result[flight.first] + rounded(share * least(lasts, beside))
        return result

    def left_of(self, alone: Sequence[Ticks], due: CarryIn) -> dict[str, Ticks]:
        """What is under way on each stream behind all ops, beside which no compute was issued."""
        return {flight.stream: self._lasts(flight, alone, due) for flight in self.left}

    def _lasts(self, flight: OverlapWindow, alone: Sequence[Ticks], due: CarryIn) -> Any:
        before = due.get(flight.stream, 0) if flight.due else 0
        return sum((alone[index] for index in flight.members), before)


def interference_of(
    ops: Sequence[Op], waits: Sequence[Waits], streams: Sequence[str] = ()
) -> Interference:
    """Which compute ops run beside which collectives; on `streams` some are under way already."""
    flying = {stream: OverlapWindow(stream, due=True) for stream in streams}
    ended: list[OverlapWindow] = []
    slot = NONE, ""
    computes = [not op.communicates and op.stream == COMPUTE and op.kind != FENCE for op in ops]
    for index, op in enumerate(ops):
        if op.stream != COMPUTE:
            if op.is_collective:
                _open_window(flying, ended, op.stream, index)
            continue
        for awaited in waits[index]:
            _close_window(flying, ended, ops[awaited].stream, awaited)
        if not computes[index]:
            continue
        if (own := (op.block.micro_batch, op.block.work)) != slot:
            slot = own
            ended += [flight for flight in flying.values() if flight.first >= 0]
            flying = {key: flight for key, flight in flying.items() if flight.first < 0}
        for flight in flying.values():
            flight.first = index if flight.first < 0 else flight.first
            flight.last = index
    every = [*ended, *flying.values()]
    found = [flight for flight in every if flight.first >= 0]
    return Interference(found, [flight for flight in flying.values() if flight.first < 0], computes)


def _open_window(
    flying: dict[str, OverlapWindow], ended: list[OverlapWindow], stream: str, index: int
) -> None:
    if stream in flying and flying[stream].first >= 0:
        ended.append(flying.pop(stream))
    flying.setdefault(stream, OverlapWindow(stream)).members.append(index)


def _close_window(
    flying: dict[str, OverlapWindow], ended: list[OverlapWindow], stream: str, awaited: int
) -> None:
    """An op waits for one of a stream: it and those before it are over."""
    flight = flying.get(stream)
    if flight is None:
        return
    later = [index for index in flight.members if index > awaited]
    if flight.first >= 0 and not later:
        ended.append(flying.pop(stream))
    elif flight.first < 0:
        flight.members, flight.due = later, False
        if not later:
            del flying[stream]
