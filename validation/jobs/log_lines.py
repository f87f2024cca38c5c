"""A job's steps from a framework's log, by the formats of `log_formats.toml`.

A log is read line by line, once; of its lines those that have a mark are looked at. What is kept of
a step is its number and what its line says of its time, which becomes seconds when all of the log
is known, for some frameworks log rates: of the job's sequences, or of a device's tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from topologies.files.budget import Budget
from topologies.files.printable import shown
from validation.jobs.errors import LogError
from validation.jobs.log_formats import (
    ALLOCATED,
    BATCH,
    DEVICE_TOKENS_PER_S,
    MEMORY,
    SAMPLES,
    SAMPLES_PER_S,
    SEQUENCE,
    beside,
    formats,
    marks,
)
from validation.jobs.log_text import MOST_LINE
from validation.jobs.logged_sizes import BATCH as LOGGED_BATCH
from validation.jobs.logged_sizes import DEVICES, STEPS, LoggedSizes
from validation.jobs.logged_sizes import MARKS as SIZE_MARKS
from validation.jobs.logged_sizes import SEQUENCE as LOGGED_SEQUENCE
from validation.jobs.measured_job import WARM_UP, LoggedSteps, MeasuredJob
from validation.jobs.other_logs import INSTEAD, MOST_LOOKED, OtherLogs
from validation.jobs.step_lines import Job, StepLines

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_COLOURED = "\x1b["
# Labels of lines, perhaps several: of torchrun (`[default7]:`), of srun --label (`0: `), of pdsh
# (`node-3: `), of mpirun --tag-output (`[1,0]<stdout>:`), of Lightning (`[rank: 0]`) and of Primus
# (`[rank-0/8]`); a time as 10:00:04 is none.
_RANK = re.compile(
    r"(?:\s*(?:\[[A-Za-z_-]*\d{1,7}\]:|\d{1,7}:(?: |(?=\s|\[))|(?:rank|default)\d{1,7}:"
    r"|[A-Za-z][\w.-]{0,60}\d: (?=\[?\d{4}-)|\[\d{1,7},\d{1,7}\]<\w+>:"
    r"|\[rank: ?\d{1,7}\]|(?:\[[\d :.-]{8,30}\])?\[rank-\d{1,7}/\d{1,7}\]))+"
)
_TIME = re.compile(r"\[[\d :.-]{8,30}\]")  # within a label
_TIMER = re.compile(r"^\s*([\w-]+) \.{2,}: \(([\d.]{1,20}), ([\d.]{1,20})\)\s*$")
TIMERS = " .."
MOST_STEPS, MOST_TIMERS, LONGEST_LABEL = 1_000_000, 1_000, 100
GIB = 2.0**30
MS = 1e-3


class _Log:
    """What the lines of a log have said so far."""

    def __init__(self, name: str) -> None:
        self.kinds = tuple(map(StepLines, formats()))
        self.sizes = LoggedSizes()
        self.memory: dict[str, float] = {}
        self.timers: dict[str, list[float]] = {}
        self.unread = ""
        self._steps = Budget(name, "steps", MOST_STEPS, LogError)

    def take(self, line: str) -> None:
        """Take in a line that has a mark."""
        rank, unlabelled = split_label(line)
        for kind in self.kinds:
            broken = kind.broken
            self._steps.charge(kind.take(unlabelled, rank))
            if kind.broken > broken and not self.unread:
                self.unread = line[line.find(kind.format.mark) :]
        for mark, values in beside():
            if mark in unlabelled:
                for key, value in values.found(unlabelled).items():
                    if value > 0:
                        self.memory[key] = max(value, self.memory.get(key, 0.0))
        self._take_timer(unlabelled)
        if self.sizes.take(unlabelled):
            for kind in self.kinds:
                kind.another_job()

    def end(self) -> None:
        """Take in the log's end."""
        for kind in self.kinds:
            self._steps.charge(kind.end())

    def _take_timer(self, line: str) -> None:
        timer = _TIMER.match(line) if TIMERS in line else None
        if timer and (timer[1] in self.timers or len(self.timers) < MOST_TIMERS):
            self.timers.setdefault(timer[1][:LONGEST_LABEL], []).append(float(timer[3]) * MS)


def read_log(lines: Callable[..., Iterable[str]], name: str, asked: Job) -> MeasuredJob:
    """Read the job of a log; `lines(*marks)` yields the lines that may contain one of the marks,
    `lines(most=...)` those of the first bytes.

    If the log has a rate of sequences or tokens but not their number per step, that number is
    `asked`'s. If several ranks log, steps are those of the first rank that logged one; Megatron-LM
    logs steps on the last rank, and memory and arguments on the first. A LogError says why there
    are no steps.
    """
    log, looked_for = _Log(name), (*marks(), TIMERS, *SIZE_MARKS)
    for line in map(plain, lines(*looked_for)):
        if any(map(line.__contains__, looked_for)):  # far sooner told than by one pattern of all
            log.take(line)
    log.end()
    sizes = log.sizes.found()
    for kind in log.kinds:
        own, taken = _own(kind, sizes, asked)
        entries, starts = kind.entries(own)
        if entries:
            return _job(log, kind, entries, starts, sizes, taken)
    raise LogError(_no_steps(log, name, lines(most=MOST_LOOKED)))


def _own(kind: StepLines, sizes: Mapping[str, int], asked: Job) -> tuple[Job, bool]:
    """What a step of the job works on, and whether part of it is from the question, not the
    log."""
    batches, sequences = kind.kept.get(BATCH, []), kind.kept.get(SEQUENCE, [])
    batch = sizes.get(LOGGED_BATCH, batches[-1] if batches else None)
    sequence = sizes.get(LOGGED_SEQUENCE, sequences[-1] if sequences else None)
    devices = sizes.get(DEVICES)
    needed = {DEVICE_TOKENS_PER_S: (batch, sequence, devices), SAMPLES_PER_S: (batch,)}
    quantity = kind.lines[0].quantity if kind.lines else ""
    of_samples = kind.format.clock and kind.format.counts == SAMPLES
    taken = None in ((batch,) if of_samples else needed.get(quantity, ()))
    own = Job(
        batch or asked.batch, sequence or asked.sequence, devices or asked.devices, sizes.get(STEPS)
    )
    return own, taken


def _no_steps(log: _Log, name: str, lines: Iterable[str]) -> str:
    """Why a log has no steps, and which formats are known."""
    if log.unread:
        told = shown(log.unread[:80].rstrip())
        return f"{name} has no steps: its format of a step's time is unknown: {told}"
    others = OtherLogs()
    for line in map(plain, lines):
        others.take(split_label(line)[1])
    if (other := others.found()) is not None:
        return f"{name}, a log of {other[0]}, has no steps: {other[1]}; {INSTEAD}"
    known = ", ".join(each.name for each in formats())
    return f"{name} has no steps in a known format: {known}"


def plain(line: str) -> str:
    """A line without colours, cut to the longest length that is read."""
    return uncoloured(line)[:MOST_LINE]


def uncoloured(line: str) -> str:
    """A line without the codes by which a terminal colours it."""
    return _COLOURS.sub("", line) if _COLOURED in line else line


def split_label(line: str) -> tuple[str, str]:
    """The label of a line's rank, and the line without it."""
    found = _RANK.match(line)
    if found is None:
        return "", line
    return _TIME.sub("", found[0]).strip()[:LONGEST_LABEL], line[found.end() :]


def _job(
    log: _Log,
    kind: StepLines,
    entries: tuple[LoggedSteps, ...],
    starts: tuple[int, ...],
    sizes: dict[str, int],
    taken: bool,
) -> MeasuredJob:
    peaks = {key: max(values) for key in MEMORY if (values := kind.kept.get(key))}
    for key, value in log.memory.items():
        peaks[key] = max(value, peaks.get(key, 0.0))
    peak_of = next((key for key in MEMORY if key in peaks), ALLOCATED)
    batches = kind.kept.get(BATCH, [])
    ranks, batch = sizes.pop(DEVICES, None), sizes.pop(LOGGED_BATCH, None)
    sizes.pop(STEPS, None)
    if len(batches) == 1:
        batch = round(batches[0])
    return MeasuredJob(
        kind=f"log of {kind.format.name}",
        entries=entries,
        starts=starts,
        warm_up=0 if kind.format.whole else WARM_UP,
        peak_bytes=peaks.get(peak_of),
        peak_of=peak_of,
        batch=None if len(batches) > 1 else batch,
        ranks=ranks,
        sizes=sizes,
        timers_s={name: float(np.median(values)) for name, values in log.timers.items()},
        remarks=(*_remarks(kind, entries, starts, batches, taken), *_beside(peaks, peak_of)),
    )


def _beside(peaks: Mapping[str, float], compared: str) -> Iterator[str]:
    """The log's other figures of memory, which are not compared."""
    words = {"reserved": "reserved by PyTorch", "device": "in use on the device"}
    for key, word in words.items():
        if key in peaks and key != compared:
            yield f"memory {word}: {peaks[key] / GIB:.1f} GiB"


def _remarks(
    kind: StepLines,
    entries: Sequence[LoggedSteps],
    starts: Sequence[int],
    batches: Sequence[float],
    taken: bool,
) -> Iterator[str]:
    most = max(each.last - each.first + 1 for each in entries)
    if most > 1 and not kind.format.whole:
        yield f"a line of the log is the mean of up to {most:,} steps: single steps scatter more"
    if kind.last_has_steps:
        several = len(kind.begins) + 1
        yield f"the log has {several:,} jobs of different sizes; the last one is compared"
    if len(starts) > 1:
        yield f"the job started {len(starts):,} times, the last time before step {starts[-1]:,}"
    if len(kind.ranks) > 1:
        yield f"{len(kind.ranks):,} ranks log steps; those of one rank are compared"
    if kind.broken:
        lines = "1 line" if kind.broken == 1 else f"{kind.broken:,} lines"
        verb = "was" if kind.broken == 1 else "were"
        yield f"{lines} of a step could not be read and {verb} left out"
    if len(batches) > 1:
        yield f"the batch size changes, from {batches[0]:,.0f} to {batches[-1]:,.0f} sequences"
    if kind.lines[0].quantity == DEVICE_TOKENS_PER_S:
        yield "step times are computed from the logged tokens/s"
    if taken:
        yield "the log does not say how many tokens a step has; your batch and sequence are used"
    if kind.format.said:
        yield kind.format.said
