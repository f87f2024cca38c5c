"""What a rank has in flight: ops of other streams that were issued and not yet waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from executor.collectives import Waitable
from executor.rank_context import RankContext
from executor.timing import Recorder


class AsyncWork:
    """One step's ops in flight, by stream. On a GPU those that are no collectives (their libraries
    have streams of their own) take side streams."""

    def __init__(self, recorder: Recorder, at: RankContext) -> None:
        self._recorder = recorder
        self._at = at
        self._queues: dict[str, deque[tuple[int, Waitable]]] = {}

    def aside(self, stream: str, kernel: Callable[[], None]) -> Waitable:
        """Run a kernel on a side stream of a GPU; returns what to wait for.

        There it starts once everything issued so far on the compute stream is done.
        """
        device = self._at.device
        side = self._at.streams.named(stream, device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            kernel()
            return SideWork(side.record_event())

    def started(self, index: int, stream: str, work: Waitable | None) -> None:
        """Note an op that was issued: it is through, or there is something to wait for."""
        if work is None:
            self._recorder.end(index)
        else:
            self._recorder.track(index, stream, work)
            self._queues.setdefault(stream, deque()).append((index, work))

    def wait_for(self, stream: str, index: int) -> None:
        """Wait for a stream's ops up to op `index`, in the order in which they were issued."""
        queue = self._queues.get(stream)
        while queue and queue[0][0] <= index:
            issued, work = queue.popleft()
            work.wait()
            self._recorder.awaited(issued)

    def wait_for_all(self) -> None:
        """Wait for everything."""
        for stream, queue in self._queues.items():
            if queue:
                self.wait_for(stream, queue[-1][0])


class SideWork:
    """A kernel on a side stream of a GPU."""

    def __init__(self, done: Any) -> None:
        self._done = done

    def wait(self) -> None:
        """Make the current stream wait for it."""
        self._done.wait()

    def get_future(self) -> Any:
        """There is none: a RuntimeError."""
        raise RuntimeError("an event tells the device, not the host")
