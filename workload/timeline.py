"""The timeline: when each op ran, predicted or measured, and its Chrome trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from topologies.records import record
from workload.op import COMPUTE, Block, Op


@record
class Span:
    """One op on one rank, from `start_s` to `end_s` seconds after the step began; before it the
    device waited `host_s` for the host to issue it."""

    rank: int
    op: Op
    start_s: float
    end_s: float
    host_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """How long the op took."""
        return self.end_s - self.start_s


@record
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
    """The Chrome trace as JSON: a process per rank and timeline, a track per stream, and an arrow
    from each message's sender to its receiver. Times are in microseconds, to the nanosecond."""
    events: list[dict[str, Any]] = []
    process = 0
    for timeline in timelines:
        slices: list[tuple[Span, dict[str, Any]]] = []
        for rank in sorted({span.rank for span in timeline.spans}):
            spans = timeline.of_rank(rank)
            names = {block: str(block) for block in dict.fromkeys(s.op.block for s in spans)}
            streams = [COMPUTE, *sorted({s.op.stream for s in spans} - {COMPUTE})]
            events += _names(process, f"{timeline.origin} rank {rank}", streams)
            slices += [(s, _slice(s, process, streams.index(s.op.stream), names)) for s in spans]
            process += 1
        events += [event for _, event in slices]
        events += _arrows(slices, first=len(events))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names(process: int, title: str, streams: Sequence[str]) -> list[dict[str, Any]]:
    about = {"ph": "M", "pid": process}
    return [
        {**about, "name": "process_name", "args": {"name": title}},
        *(
            {**about, "name": "thread_name", "tid": track, "args": {"name": stream}}
            for track, stream in enumerate(streams)
        ),
    ]


def _slice(span: Span, process: int, track: int, names: Mapping[Block, str]) -> dict[str, Any]:
    begin_ns, end_ns = round(span.start_s * 1e9), round(span.end_s * 1e9)
    return {
        "ph": "X",
        "name": span.op.name,
        "cat": span.op.kind,
        "pid": process,
        "tid": track,
        "ts": begin_ns / 1e3,
        "dur": (end_ns - begin_ns) / 1e3,
        "args": _arguments(span.op, names[span.op.block]),
    }


def _arrows(slices: Sequence[tuple[Span, dict[str, Any]]], first: int) -> Iterator[dict[str, Any]]:
    """A flow for each message that both ends are there of, the first sender to the first receiver.

    It leaves as the send begins, and arrives while the receive is under way.
    """
    ends: dict[str, dict[str, list[dict[str, Any]]]] = {"send": {}, "recv": {}}
    for span, event in slices:
        if span.op.is_message:
            ends[span.op.kind].setdefault(span.op.attributes["tag"], []).append(event)
    for tag, senders in ends["send"].items():
        for sender, receiver in zip(senders, ends["recv"].get(tag, ()), strict=False):
            arrival = max(sender["ts"], receiver["ts"])
            if arrival <= receiver["ts"] + receiver["dur"]:
                first += 1
                about = {"cat": "message", "name": tag, "id": first}
                yield {"ph": "s", **_at(sender, sender["ts"]), **about}
                yield {"ph": "f", "bp": "e", **_at(receiver, arrival), **about}


def _at(event: Mapping[str, Any], at: float) -> dict[str, Any]:
    return {"pid": event["pid"], "tid": event["tid"], "ts": at}


def _arguments(op: Op, block: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {"bytes": op.nbytes, "block": block}
    if op.flops:
        arguments["flops"] = op.flops
    if op.axes:
        arguments["axes"] = "+".join(op.axes)
    return arguments
