"""A job's steps and kernels from a trace of torch.profiler, of one rank.

Steps are what lies between the marks ProfilerStep#N, which torch.profiler sets where its `step()`
is called: those on the device, where there are some, else those of the host. Kernels are those of
the device; in a trace without one they are the host's outermost ops, and those of gloo.

Source: github.com/pytorch/kineto, libkineto/src/output_json.cpp (fields and categories of events).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from topologies.files.printable import path_shown
from topologies.records import record
from validation.jobs.anatomy import Communicator, Kernel, anatomy
from validation.jobs.errors import LogError
from validation.jobs.kernel_names import ISSUED, LIBRARIES, SIZE, kernel_class
from validation.jobs.measured_job import LoggedSteps, MeasuredJob
from validation.jobs.trace_events import TraceEvents

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of work on a device
HOST_OP, HOST_MARK, DEVICE_MARK = "cpu_op", "user_annotation", "gpu_user_annotation"
OWN_PROCESS = re.compile(r"(?:measured|predicted|simulated) rank \d+")
STEP_MARK = re.compile(r"ProfilerStep#(\d{1,9})")
US = 1e-6  # of the trace's clock
LONGEST_NAME, LONGEST_THREAD = 4_000, 50  # characters of a kernel's name, and of a thread's
MOST_NAMES = 100_000  # whose classes are remembered


class Span(NamedTuple):
    """When something ran, in seconds of the trace's clock."""

    start_s: float
    end_s: float


@dataclass
class _Trace:
    """What of a trace is kept: work on devices, outermost ops of each thread of the host, what
    communicates from the host, and the marks of steps by their number."""

    device: list[Kernel] = field(default_factory=list)
    host: dict[Any, list[Kernel]] = field(default_factory=dict)
    gloo: list[Kernel] = field(default_factory=list)
    host_marks: dict[int, Span] = field(default_factory=dict)
    device_marks: dict[int, Span] = field(default_factory=dict)
    is_own: bool = False


def read_trace(path: Path) -> tuple[MeasuredJob, int]:
    """The job of a trace, and the rank that it was traced on (0, if the trace says none)."""
    events = TraceEvents(path)
    trace = _kept(events)
    marks = trace.device_marks or trace.host_marks
    if trace.is_own:
        raise LogError(
            f"{path_shown(path)} is a timeline of simgpt's own, which `simgpt run --trace` and "
            "`simgpt predict --trace` write; give what `simgpt run --json` writes, or a trace of "
            "torch.profiler"
        )
    if not marks:
        raise LogError(
            f"{path_shown(path)} has no marks of steps (ProfilerStep#N), which torch.profiler sets "
            "where the training loop calls its step() after each step"
        )
    kernels = trace.device or [*trace.gloo, *_outermost(trace.host)]
    begin_s, end_s = marks[min(marks)].start_s, max(span.end_s for span in marks.values())
    about = _distributed(events.distributed)
    job = MeasuredJob(
        kind="trace of torch.profiler",
        entries=tuple(_steps(marks)),
        warm_up=0,  # its schedule has a warm-up of its own
        starts=(min(marks) + 1,),
        ranks=about.get("world_size"),
        anatomy=anatomy(kernels, begin_s, end_s, len(marks)),
        remarks=() if trace.device else ("the trace has no device: its kernels are host ops",),
    )
    return job, about.get("rank", 0)


def _steps(marks: Mapping[int, Span]) -> Iterator[LoggedSteps]:
    """Each step from its mark's start to that of the next; the last to its own end."""
    for number in sorted(marks):
        span, after = marks[number], marks.get(number + 1)
        end_s = span.end_s if after is None else after.start_s
        yield LoggedSteps(number + 1, number + 1, end_s - span.start_s)


def _kept(events: Iterable[Mapping[str, Any]]) -> _Trace:
    trace, classes = _Trace(), _Classes({})
    for event in events:
        _keep(event, trace, classes)
    return trace


@record
class _Classes:
    """The classes of kernels by what they follow from: a trace has few names, many times each."""

    known: dict[tuple[str, str], str | Communicator]

    def of(self, name: str, arguments: Mapping[str, Any]) -> str | Communicator:
        """The class of a kernel, or the communicator that it serves."""
        key = name[:LONGEST_NAME], str(arguments.get(SIZE, ""))[:LONGEST_THREAD]
        if (found := self.known.get(key)) is None:
            found = kernel_class(key[0], arguments)
            if len(self.known) < MOST_NAMES:
                self.known[key] = found
        return found


def _keep(event: Mapping[str, Any], trace: _Trace, classes: _Classes) -> None:
    name, category, arguments = event.get("name"), event.get("cat"), event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    if event.get("ph") == "M":
        title = str(arguments.get("name", "")) if name == "process_name" else ""
        trace.is_own |= OWN_PROCESS.fullmatch(title) is not None
    span = _span(event)
    if span is None or not isinstance(name, str):
        return
    mark = STEP_MARK.fullmatch(name)
    if mark is not None:
        if category in (HOST_MARK, DEVICE_MARK):
            marks = trace.device_marks if category == DEVICE_MARK else trace.host_marks
            marks[int(mark[1])] = span
    elif category in DEVICE:
        trace.device.append(Kernel(classes.of(name, arguments), *span))
    elif name.startswith(LIBRARIES[-1]):
        trace.gloo.append(Kernel(classes.of(name, arguments), *span))
    elif category == HOST_OP and not trace.device and not name.startswith(ISSUED):
        thread = tuple(str(event.get(key))[:LONGEST_THREAD] for key in ("pid", "tid"))
        trace.host.setdefault(thread, []).append(Kernel(classes.of(name, {}), *span))


def _span(event: Mapping[str, Any]) -> Span | None:
    """When a complete event ran; None of any other."""
    start, duration = event.get("ts"), event.get("dur")
    for each in (start, duration):
        if isinstance(each, bool) or not isinstance(each, int | float) or not math.isfinite(each):
            return None
    assert isinstance(start, int | float)
    assert isinstance(duration, int | float)
    return Span(start * US, (start + max(duration, 0)) * US) if event.get("ph") == "X" else None


def _outermost(threads: Mapping[Any, list[Kernel]]) -> Iterator[Kernel]:
    """The host's ops that no other op of their thread contains."""
    for ops in threads.values():
        over = -math.inf
        for op in sorted(ops, key=lambda op: (op.start_s, -op.end_s)):
            if op.start_s >= over:
                over = op.end_s
                yield op


def _distributed(table: Any) -> dict[str, int]:
    """Rank and number of ranks, as far as the trace has them."""
    found = table if isinstance(table, dict) else {}
    return {
        key: found[key]
        for key in ("rank", "world_size")
        if type(found.get(key)) is int and 0 <= found[key] < 2**31
    }
