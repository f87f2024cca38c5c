"""Which ops ran, and when: host clock on a CPU, events on a GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from executor.collectives import Waitable
from executor.rank_context import RankContext
from workload.program import Program
from workload.timeline import Timeline, timeline_of


class Recorder(Protocol):
    """Notes when each op of a step starts and ends."""

    def begin(self, index: int) -> None:
        """Op `index` is about to be issued."""

    def end(self, index: int) -> None:
        """A compute op, or a blocking collective, is through."""

    def track(self, index: int, stream: str, work: Waitable) -> None:
        """An asynchronous collective was issued."""

    def awaited(self, index: int) -> None:
        """An asynchronous collective was waited for."""

    def timeline(self, program: Program, rank: int) -> Timeline:
        """The spans of what ran, in the order of issue; call it once the device is idle."""


class HostRecorder:
    """Spans by the host's clock. A collective ends when its future fires, or when awaited."""

    def __init__(self, ops: int) -> None:
        self._ran: list[int] = []
        self._starts = [0.0] * ops
        self._ends = [0.0] * ops

    def begin(self, index: int) -> None:
        self._ran.append(index)
        self._starts[index] = time.perf_counter()

    def end(self, index: int) -> None:
        self._ends[index] = time.perf_counter()

    def track(self, index: int, stream: str, work: Waitable) -> None:
        try:
            future = work.get_future()
        except RuntimeError:
            # Gloo's reduce-scatter has no future; its end is known when it is awaited.
            return
        future.add_done_callback(lambda _: self._done(index))

    def awaited(self, index: int) -> None:
        if not self._ends[index]:
            self._done(index)

    def timeline(self, program: Program, rank: int) -> Timeline:
        return _timeline(program, rank, self._ran, self._starts, self._ends)

    def _done(self, index: int) -> None:
        self._ends[index] = time.perf_counter()


class DeviceRecorder:
    """Spans by CUDA events. For each communication stream a side stream waits for its works.

    Its events exist from the start, so that none is made while the step is timed.
    """

    def __init__(self, ops: int, at: RankContext) -> None:
        self._at = at
        self._ran: list[int] = []
        self._starts = [_event() for _ in range(ops)]
        self._ends = [_event() for _ in range(ops)]

    def begin(self, index: int) -> None:
        self._ran.append(index)
        self._starts[index].record()

    def end(self, index: int) -> None:
        self._ends[index].record()

    def track(self, index: int, stream: str, work: Waitable) -> None:
        with torch.cuda.stream(self._at.streams.named(f"times of {stream}", self._at.device)):
            work.wait()
            self._ends[index].record()

    def awaited(self, index: int) -> None:
        return

    def timeline(self, program: Program, rank: int) -> Timeline:
        torch.cuda.synchronize()
        origin = self._starts[self._ran[0]]
        starts, ends = (
            {index: origin.elapsed_time(events[index]) / 1e3 for index in self._ran}
            for events in (self._starts, self._ends)
        )
        return _timeline(program, rank, self._ran, starts, ends)


class NoRecorder:
    """Notes nothing: recording takes time, and few steps are looked at op by op."""

    def begin(self, index: int) -> None:
        return

    def end(self, index: int) -> None:
        return

    def track(self, index: int, stream: str, work: Waitable) -> None:
        return

    def awaited(self, index: int) -> None:
        return

    def timeline(self, program: Program, rank: int) -> Timeline:
        return Timeline("measured", ())


def recorder_for(program: Program, at: RankContext) -> Recorder:
    """What notes a program's ops on the device of a rank."""
    if at.device.type == "cuda":
        return DeviceRecorder(len(program.ops), at)
    return HostRecorder(len(program.ops))


def _timeline(
    program: Program,
    rank: int,
    ran: Sequence[int],
    starts: Sequence[float] | Mapping[int, float],
    ends: Sequence[float] | Mapping[int, float],
) -> Timeline:
    ops = [program.ops[index] for index in ran]
    times = ([moments[index] for index in ran] for moments in (starts, ends))
    return timeline_of("measured", rank, ops, *times)


def timing_event() -> Any:
    """An event of a GPU's clock."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _event() -> Any:
    event = timing_event()
    event.record()  # CUDA makes an event when it is first recorded
    return event
