"""A step captured once as a CUDA graph and replayed, so that the host issues no op by itself.

What a captured step reads is read anew in each replay, from the same addresses: so a step's tokens,
learning rate and number lie in tensors that are filled before it. Whatever else differs from step
to step would be frozen, and is refused before the run (`executor/launching/device_use.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from executor.launching.device_use import EAGER_STEPS

Carried = dict[str, int]


class StepGraph(Protocol):
    """What records the calls that a step makes of the device, and makes them once more."""

    def capture(self, step: Callable[[], Carried]) -> Carried:
        """Note what a step asks of the device, which does none of it; returns what it carries."""

    def replay(self) -> None:
        """Let the device do all that was noted, in the same memory."""


class CudaGraph:
    """torch's CUDA graph. Its tensors lie in a pool of memory of its own, which is kept."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, step: Callable[[], Carried]) -> Carried:
        """Capture a step. Only this thread may not call what a capture forbids: others, which save
        or watch, go on."""
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            return step()

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self._graph.replay()


class GraphedSteps:
    """Steps of one program: the first ones issued op by op, the next one captured, and replayed as
    all after it are.

    The first steps let libraries load and choose their kernels, and communicators form, none of
    which a capture allows.
    """

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._eager = EAGER_STEPS
        self._carried: Carried | None = None

    def perform(self, step: Callable[[], Carried]) -> Carried:
        """Perform a step; returns the bytes that it carried, by axes."""
        if self._eager:
            self._eager -= 1
            return step()
        if self._carried is None:
            self._carried = self._graph.capture(step)
        self._graph.replay()
        return self._carried
