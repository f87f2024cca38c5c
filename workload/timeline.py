"""The timeline: when each op ran, predicted or measured, and its Chrome trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from workload.op import COMPUTE, Op


@dataclass(frozen=True, slots=True)
class Span:
    """One op on one rank, from `start_s` to `end_s` seconds after the step began."""

    rank: int
    op: Op
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """How long the op took."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """The spans of one step, in issue order rank by rank. `origin` says who made it."""

    origin: str
    spans: tuple[Span, ...]

    @property
    def step_s(self) -> float:
        """From the first start to the last end."""
        if not self.spans:
            return 0.0
        return max(s.end_s for s in self.spans) - min(s.start_s for s in self.spans)

    def of_rank(self, rank: int) -> list[Span]:
        """One rank's spans, in issue order."""
        return [span for span in self.spans if span.rank == rank]


def timeline_of(
    origin: str, rank: int, ops: Sequence[Op], starts: Sequence[float], ends: Sequence[float]
) -> Timeline:
    """One rank's timeline from when each op started and ended, counted from the first start."""
    zero = min(starts, default=0.0)
    spans = (
        Span(rank, op, start - zero, max(end, start) - zero)
        for op, start, end in zip(ops, starts, ends, strict=True)
    )
    return Timeline(origin, tuple(spans))


def join(predicted: Iterable[Span], measured: Iterable[Span]) -> list[tuple[Span, Span]]:
    """Pair two ranks' spans op by op; a ValueError names an op that stands on one side only."""
    ours = {span.op.name: span for span in predicted}
    theirs = {span.op.name: span for span in measured}
    alone = sorted(ours.keys() ^ theirs.keys())
    if alone:
        raise ValueError(f"{len(alone)} ops have no counterpart, the first is {alone[0]}")
    return [(span, theirs[name]) for name, span in ours.items()]


def chrome_trace(timelines: Iterable[Timeline]) -> dict[str, Any]:
    """The Chrome trace as JSON: a process per rank and timeline, a track per stream."""
    events: list[dict[str, Any]] = []
    process = 0
    for timeline in timelines:
        for rank in sorted({span.rank for span in timeline.spans}):
            spans = timeline.of_rank(rank)
            events += _process_events(process, f"{timeline.origin} rank {rank}", spans)
            process += 1
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _process_events(process: int, title: str, spans: list[Span]) -> list[dict[str, Any]]:
    streams = [COMPUTE, *sorted({s.op.stream for s in spans} - {COMPUTE})]
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
    ]
    for track, stream in enumerate(streams):
        name = {"name": stream}
        events.append(
            {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": name}
        )
    for span in spans:
        events.append(
            {
                "ph": "X",
                "name": span.op.name,
                "cat": span.op.kind,
                "pid": process,
                "tid": streams.index(span.op.stream),
                "ts": span.start_s * 1e6,
                "dur": span.duration_s * 1e6,
                "args": _arguments(span.op),
            }
        )
    return events


def _arguments(op: Op) -> dict[str, Any]:
    arguments: dict[str, Any] = {"bytes": op.nbytes, "block": op.block}
    if op.flops:
        arguments["flops"] = op.flops
    if op.axes:
        arguments["axes"] = "+".join(op.axes)
    return arguments
