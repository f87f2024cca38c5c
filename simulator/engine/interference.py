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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from topologies.records import record
from workload.dataflow import Waits
from workload.op import COMPUTE, NONE, Op
from workload.sizes.arrays import Flags, Indices, Ticks

FENCE = "fence"
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


@record(slots=False)
class Interference:
    """Which compute ops run beside which collectives.

    `windows` have compute beside them, those in `unmatched` have none before the end of the ops.
    `computes` has for each op whether it is compute: no collective, and no fence, which takes no
    time.
    """

    windows: Sequence[OverlapWindow]
    unmatched: Sequence[OverlapWindow]
    computes: Sequence[bool]

    def slowed(self, alone: Ticks, share: float, carry_in: CarryIn | None = None) -> Ticks:
        """The ops' ticks, lengthened by what collectives in flight take from them.

        `alone` has isolated ticks: (ops,), or (ops, plans) for many plans at once.
        """
        if not share or not self.windows:
            return alone
        until = _summed(np.where(self._computes.reshape(-1, *[1] * (alone.ndim - 1)), alone, 0))
        compute = (until[self._last + 1] - until[self._first]) / (1 - share)
        members, offsets = self._members
        every = _summed(alone[members])
        lasts = every[offsets[1:]] - every[offsets[:-1]]
        for place, stream in self._carrying:
            lasts[place] += (carry_in or {}).get(stream, 0)
        lost = np.rint(share * np.minimum(lasts, compute)).astype(np.int64)
        result = alone.copy()
        np.add.at(result, self._first, lost)
        return result

    def carry_out(self, alone: Ticks, carry_in: CarryIn) -> dict[str, Any]:
        """Ticks of the collectives on each stream that have no compute behind them."""
        found: dict[str, Any] = {}
        for window in self.unmatched:
            before = carry_in.get(window.stream, 0) if window.carry_in else 0
            found[window.stream] = alone[window.members].sum(axis=0) + before
        return found

    @cached_property
    def _members(self) -> tuple[Indices, Indices]:
        """The collectives of all windows, one after another, and where each window's begin."""
        offsets = np.cumsum([0, *(len(window.members) for window in self.windows)], dtype=np.int64)
        every = [index for window in self.windows for index in window.members]
        return np.array(every, dtype=np.int64), offsets

    @cached_property
    def _carrying(self) -> list[tuple[int, str]]:
        """The windows that collectives from before belong to, with their streams."""
        return [(at, window.stream) for at, window in enumerate(self.windows) if window.carry_in]

    @cached_property
    def _computes(self) -> Flags:
        return np.array(self.computes, dtype=np.bool_)

    @cached_property
    def _first(self) -> Indices:
        return np.array([window.first for window in self.windows], dtype=np.int64)

    @cached_property
    def _last(self) -> Indices:
        return np.array([window.last for window in self.windows], dtype=np.int64)


def _summed(ticks: Ticks) -> Ticks:
    """Sums of the first ops: of none, of one, and so on up to all of them."""
    nothing = np.zeros((1, *ticks.shape[1:]), dtype=np.int64)
    return np.concatenate([nothing, ticks.cumsum(axis=0)])


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
