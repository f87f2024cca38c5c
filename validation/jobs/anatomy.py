"""What the kernels of a step are, and which of their time others hide.

Of a step's kernels of one rank, classes of compute and kinds of collectives are summed, and the
time line is split: some compute runs (`compute_s`), of which communication takes part of the time
(`overlapped_s`), communication runs alone (`exposed_s`), or nothing does (`idle_s`). The same
functions split measured and predicted steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topologies.records import record
from workload.grid import Grid
from workload.kinds import ATTENTIONS, MATMULS
from workload.op import STEP, Op
from workload.timeline import Span, Timeline

MATMUL, ATTENTION, ELEMENTWISE, OPTIMIZER = "matmul", "attention", "elementwise", "optimizer"
CLASSES = (MATMUL, ATTENTION, ELEMENTWISE, OPTIMIZER)
COMPUTE, EXPOSED, IDLE = "compute", "exposed communication", "idle"  # parts of the time line
BESIDE = "overlapped communication"
MESSAGES = "send/recv"  # of two ranks each, whatever group they are of
Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True, order=True)
class Communicator:
    """A kind of communication in groups of so many ranks; 0 where that is not known."""

    kind: str
    ranks: int = 0

    def __str__(self) -> str:
        return f"{self.kind} of {self.ranks:,}" if self.ranks else self.kind


class Kernel(NamedTuple):
    """One kernel of a rank, or one op of it: a class of compute, or a communicator."""

    what: str | Communicator
    start_s: float
    end_s: float


@record(slots=False)
class Anatomy:
    """Seconds of one step, mean over `steps` of them. Sums by class and communicator count time in
    which several kernels run at once for each of them."""

    steps: int
    step_s: float
    classes_s: Mapping[str, float]
    communicators_s: Mapping[Communicator, float]
    compute_s: float
    overlapped_s: float
    exposed_s: float
    idle_s: float

    @property
    def communication_s(self) -> float:
        """Time in which communication runs, with compute or without."""
        return self.overlapped_s + self.exposed_s

    def as_dict(self) -> dict[str, Any]:
        """The anatomy as it stands in JSON."""
        return {
            "steps": self.steps,
            "step_s": self.step_s,
            "classes_s": dict(self.classes_s),
            "communication": [
                {"kind": each.kind, "ranks": each.ranks or None, "seconds": seconds}
                for each, seconds in self.communicators_s.items()
            ],
            "compute_s": self.compute_s,
            "overlapped_communication_s": self.overlapped_s,
            "exposed_communication_s": self.exposed_s,
            "idle_s": self.idle_s,
        }

    def by_kind(self) -> Mapping[Communicator, float]:
        """Seconds of communication where group sizes are not told apart."""
        found: dict[Communicator, float] = {}
        for each, seconds in self.communicators_s.items():
            key = Communicator(each.kind)
            found[key] = found.get(key, 0.0) + seconds
        return found


def anatomy(kernels: Iterable[Kernel], begin_s: float, end_s: float, steps: int = 1) -> Anatomy:
    """The anatomy of the steps that lie between two points in time; kernels are cut there."""
    sums: dict[str | Communicator, float] = {}
    spans: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for each in kernels:
        span = max(each.start_s, begin_s), min(each.end_s, end_s)
        if span[1] > span[0]:
            sums[each.what] = sums.get(each.what, 0.0) + span[1] - span[0]
            spans[isinstance(each.what, Communicator)].append(span)
    compute, communication = covered_s(spans[False]), covered_s(spans[True])
    busy = covered_s([*spans[False], *spans[True]])
    return Anatomy(
        steps=steps,
        step_s=(end_s - begin_s) / steps,
        classes_s={name: sums.get(name, 0.0) / steps for name in CLASSES},
        communicators_s={
            key: sums[key] / steps for key in sorted(k for k in sums if isinstance(k, Communicator))
        },
        compute_s=compute / steps,
        overlapped_s=(compute + communication - busy) / steps,
        exposed_s=(busy - compute) / steps,
        idle_s=(end_s - begin_s - busy) / steps,
    )


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the spans.

    >>> covered_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    if not spans:
        return 0.0
    sides = np.array(sorted(spans), dtype=np.float64)
    before = np.concatenate([[-np.inf], np.maximum.accumulate(sides[:, 1])[:-1]])
    return float(np.maximum(sides[:, 1] - np.maximum(sides[:, 0], before), 0.0).sum())


def predicted_anatomy(timeline: Timeline, grid: Grid, stage: int) -> Anatomy:
    """The anatomy of a predicted step, of the first simulated rank of a pipeline stage.

    A simulated rank without an op waits for other ranks, or for its host; a measured one waits for
    others within a collective or a receive. Both count as exposed communication, so that predicted
    time is idle where the device waits for the host alone.
    """
    rank = next(s.rank for s in timeline.spans if grid.coordinates(s.rank)["pp"] == stage)
    spans = timeline.of_rank(rank)
    begin = min(span.start_s for span in timeline.spans)
    kernels = (_kernel(span, grid) for span in spans)
    found = anatomy(kernels, begin, begin + timeline.step_s)
    idle_s = min(sum(span.host_s for span in spans), found.idle_s)
    return replace(found, exposed_s=found.exposed_s + found.idle_s - idle_s, idle_s=idle_s)


def _kernel(span: Span, grid: Grid) -> Kernel:
    op = span.op
    if op.is_collective:
        return Kernel(Communicator(op.kind, grid.size(*op.axes)), span.start_s, span.end_s)
    if op.is_message:
        return Kernel(Communicator(MESSAGES), span.start_s, span.end_s)
    return Kernel(_class_of(op), span.start_s, span.end_s)


def _class_of(op: Op) -> str:
    if op.block == STEP:
        return OPTIMIZER
    if op.kind in MATMULS:
        return MATMUL
    return ATTENTION if op.kind in ATTENTIONS else ELEMENTWISE
