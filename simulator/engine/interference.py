"""Compute-communication interference: collectives in flight slow the compute beside them.

While a collective is in flight, compute on its device loses a share s of the time. How long the two
overlap is not known before the step is simulated, so it is bounded from isolated durations. The
overlap window of a collective that takes T has the compute ops issued after it, up to the first op
that waits for it, the next collective of its stream, or the end of the slot of the window's first
op. If the window's ops take W, they overlap for at most W/(1 - s), and the first of them is
lengthened by s * min(T, W/(1 - s)). A collective with no compute op behind it in its slot is
carried into the next slot (`carry_out` of one, `carry_in` of the other).

Not modelled: compute that starts late and so overlaps with a later part of the collective, or with
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workload.dataflow import Waits
from workload.op import COMPUTE, NONE, Op
from workload.sizes.arrays import Ticks

FENCE = "fence"
TicksLike = TypeVar("TicksLike", int, Ticks)
CarryIn = Mapping[str, Any]  # by stream, ticks of the collectives in flight at the begin


@dataclass(slots=True)
class OverlapWindow:
    """Collectives of a stream with no compute issued between them, and the compute beside them.

    `members` are indices of the collectives, `first` and `last` of the compute ops (-1: none). With
    `carry_in` collectives from before all ops belong to it too.
    """

    stream: str
    members: list[int] = field(default_factory=list)
    carry_in: bool = False
    first: int = -1
    last: int = -1


@dataclass(frozen=True)
class Interference:
    """Which compute ops run beside which collectives.

    `windows` have compute beside them, those in `unmatched` have none before the end of the ops.
    `computes` has for each op whether it is compute: no collective, and no fence, which takes no
    time.
    """

    windows: Sequence[OverlapWindow]
    unmatched: Sequence[OverlapWindow]
    computes: Sequence[bool]

    def slowed(
        self,
        alone: Sequence[TicksLike],
        share: float,
        least: Callable[[Any, Any], Any],
        rounded: Callable[[Any], TicksLike],
        carry_in: CarryIn | None = None,
    ) -> list[TicksLike]:
        """The ops' ticks, lengthened by what collectives in flight take from them.

        `alone` has isolated ticks: numbers, or arrays with one for each of many plans.
        """
        result = list(alone)
        if not share:
            return result
        until: list[Any] = [0] * (len(alone) + 1)
        for index, computes in enumerate(self.computes):
            until[index + 1] = until[index] + (alone[index] if computes else 0)
        for window in self.windows:
            compute = (until[window.last + 1] - until[window.first]) / (1 - share)
            lasts = self._lasts(window, alone, carry_in or {})
            result[window.first] = result[window.first] + rounded(share * least(lasts, compute))
        return result

    def carry_out(self, alone: Sequence[TicksLike], carry_in: CarryIn) -> dict[str, TicksLike]:
        """Ticks of the collectives on each stream that have no compute behind them."""
        return {window.stream: self._lasts(window, alone, carry_in) for window in self.unmatched}

    def _lasts(self, window: OverlapWindow, alone: Sequence[TicksLike], carry_in: CarryIn) -> Any:
        before = carry_in.get(window.stream, 0) if window.carry_in else 0
        return sum((alone[index] for index in window.members), before)


def interference_of(
    ops: Sequence[Op], waits: Sequence[Waits], streams: Sequence[str] = ()
) -> Interference:
    """The interference of some ops; on `streams` collectives are in flight at the begin."""
    open_windows = {stream: OverlapWindow(stream, carry_in=True) for stream in streams}
    ended: list[OverlapWindow] = []
    slot = NONE, ""
    computes = [not op.communicates and op.stream == COMPUTE and op.kind != FENCE for op in ops]
    for index, op in enumerate(ops):
        if op.stream != COMPUTE:
            if op.is_collective:
                _open_window(open_windows, ended, op.stream, index)
            continue
        for awaited in waits[index]:
            _close_window(open_windows, ended, ops[awaited].stream, awaited)
        if not computes[index]:
            continue
        if (own := (op.block.micro_batch, op.block.work)) != slot:
            slot = own
            ended += [window for window in open_windows.values() if window.first >= 0]
            open_windows = {key: window for key, window in open_windows.items() if window.first < 0}
        for window in open_windows.values():
            window.first = index if window.first < 0 else window.first
            window.last = index
    every = [*ended, *open_windows.values()]
    found = [window for window in every if window.first >= 0]
    return Interference(
        found, [window for window in open_windows.values() if window.first < 0], computes
    )


def _open_window(
    open_windows: dict[str, OverlapWindow], ended: list[OverlapWindow], stream: str, index: int
) -> None:
    if stream in open_windows and open_windows[stream].first >= 0:
        ended.append(open_windows.pop(stream))
    open_windows.setdefault(stream, OverlapWindow(stream)).members.append(index)


def _close_window(
    open_windows: dict[str, OverlapWindow], ended: list[OverlapWindow], stream: str, awaited: int
) -> None:
    """Close a stream's window: an op waits for its collective `awaited`, and so for all before."""
    window = open_windows.get(stream)
    if window is None:
        return
    later = [index for index in window.members if index > awaited]
    if window.first >= 0 and not later:
        ended.append(open_windows.pop(stream))
    elif window.first < 0:
        window.members, window.carry_in = later, False
        if not later:
            del open_windows[stream]
