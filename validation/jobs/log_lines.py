"""A job's steps from the log of Megatron-LM, of what builds on it, of NeMo, or of torchtitan.

Sources of the formats: github.com/NVIDIA/Megatron-LM, megatron/training/training.py (training_log),
megatron/training/utils/common_utils.py (report_memory), megatron/core/timers.py;
github.com/microsoft/Megatron-DeepSpeed, megatron/training.py (seconds, `TFLOPs`);
github.com/pytorch/torchtitan, torchtitan/components/metrics.py (log).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from topologies.files.budget import Budget
from topologies.files.printable import shown
from validation.jobs.errors import LogError
from validation.jobs.log_text import MOST_LINE
from validation.jobs.logged_sizes import BATCH, DEVICES, LoggedSizes
from validation.jobs.logged_sizes import MARKS as SIZE_MARKS
from validation.jobs.measured_job import LoggedSteps, MeasuredJob, numbered
from validation.jobs.nemo_log import MARK as NEMO_MARK
from validation.jobs.nemo_log import NemoSteps
from validation.jobs.nemo_log import step_of as nemo_step
from validation.jobs.other_logs import INSTEAD, MOST_LOOKED, OtherLogs

_NUMBER = r"([\d,]+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Of torchrun (`[default7]:`) and of srun --label (`0: `), perhaps both; a time as 10:00:04 is none.
_RANK = re.compile(
    r"(?:\s*(?:\[[A-Za-z_-]*\d{1,7}\]:|\d{1,7}:(?=\s|\[)|(?:rank|default)\d{1,7}:))+"
)
# A number counts only with what follows it, since a line may be cut off within one; AMD's Primus
# has the mean so far behind a stroke (AMD-AGI/Primus, docs/04-technical-guides). What stands before
# a time is sought by a pattern of its own, as one for both takes the square of a line.
_LINE = "elapsed time per iteration"
_ITERATION = re.compile(r"iteration\s+(\d{1,12})/\s*\d+ \|")
_ELAPSED = re.compile(rf"{_LINE} \((ms|s)\): {_NUMBER}(?: ?/ ?[\d,.eE+-]+)? \|")
_RATE = re.compile(
    rf"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs): {_NUMBER}(?: ?/ ?[\d,.eE+-]+)? \|"
)
_BATCH = re.compile(r"global batch size:\s*(\d{1,12}) \|")
_ALLOCATED = re.compile(rf"\| max allocated: {_NUMBER} \|")
_TIMER = re.compile(rf"^\s*([\w-]+) \.{{2,}}: \({_NUMBER}, {_NUMBER}\)\s*$")
_STEP = re.compile(r"\bstep:\s*(\d{1,12})\s+loss:")
_TOKENS = re.compile(rf"\b(?:tps|wps): {_NUMBER}\s+\S")
_RESERVED = re.compile(rf"memory:\s*{_NUMBER}GiB")
_TFLOPS = re.compile(rf"tflops: {_NUMBER}\s+mfu")
MEGATRON, TORCHTITAN, NEMO = "log of Megatron-LM", "log of torchtitan", "log of NeMo"
# One of which stands in all lines that are read.
_COLOURED = "\x1b["
MARKS = (_LINE, NEMO_MARK, "step:", "max allocated", " ..", *SIZE_MARKS)
MOST_STEPS, MOST_TIMERS, LONGEST_LABEL = 1_000_000, 1_000, 100
LEAST_NUMBER, LONGEST_S = 1e-30, 1e9  # more is no step's time
UNITS_S = {"ms": 1e-3, "s": 1.0}
MIB, GIB, TERA = 2**20, 2**30, 1e12


@dataclass
class _Found:
    """What a log's lines gave: for each its step, seconds (or tokens/s of a device) and FLOP/s."""

    lines: list[tuple[int, float, float | None]] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    batches: dict[int, None] = field(default_factory=dict)
    timers: dict[str, list[float]] = field(default_factory=dict)
    reserved: list[float] = field(default_factory=list)


class _Kind:
    """The steps of one kind of log, of the first rank that logged one."""

    def __init__(
        self, name: str, step_of: Callable[[str], Any], take: Callable[[str], None]
    ) -> None:
        self.name, self._step_of, self._take = name, step_of, take
        self._ranks: dict[str, None] = {}

    def take(self, line: str) -> bool:
        """Take in a line; whether it has a step of this kind."""
        if self._step_of(line) is None:
            return False
        rank = _rank_of(line)
        self._ranks[rank] = None
        if rank == next(iter(self._ranks)):
            self._take(line)
        return True

    @property
    def others(self) -> int:
        """How many other ranks there are."""
        return len(self._ranks) - 1


def read_log(
    lines: Callable[..., Iterable[str]], name: str, tokens_per_device: float
) -> MeasuredJob:
    """The job of a log, of which `lines` gives those lines that may have one of some marks, or all
    of its first `most` bytes.

    torchtitan logs tokens per second and device, of which `tokens_per_device` are a step. Where
    lines of several ranks are in one log, steps are those of the first rank that logged one;
    Megatron-LM logs steps on the last rank, and memory and arguments on the first.
    """
    megatron, titan, nemo, sizes = _Found(), _Found(), NemoSteps(), LoggedSizes()
    of_titan = partial(_take_titan, titan, tokens_per_device)
    kinds = (
        _Kind(MEGATRON, _iteration, partial(_take_iteration, megatron)),
        _Kind(NEMO, nemo_step, nemo.take),
        _Kind(TORCHTITAN, _titan_step, of_titan),
    )
    steps = Budget(name, "steps", MOST_STEPS, LogError)
    unread = ""
    for line in filter(_is_marked, map(_plain, lines(*MARKS))):
        unread = unread or line[line.find(_LINE) :] * (_LINE in line)
        steps.charge(True in [kind.take(line) for kind in kinds])
        unlabelled = _unlabelled(line)
        _take_beside(megatron, unlabelled)
        sizes.take(unlabelled)
    for kind, found in zip(kinds, (megatron, _of_nemo(nemo), titan), strict=True):
        if found.lines:
            return _job(kind.name, found, kind.others, sizes.found())
    raise LogError(_no_steps(name, unread[:80].rstrip(), lines(most=MOST_LOOKED)))


def _no_steps(name: str, unread: str, lines: Iterable[str]) -> str:
    """Why a log has no steps, and what would be read; `unread` is what it has of a step's time."""
    if unread:
        return f"{name} has no steps: what it has of a step's time is not read, as {shown(unread)}"
    others = OtherLogs()
    for line in map(_plain, lines):
        others.take(_unlabelled(line))
    if (other := others.found()) is not None:
        return f"{name} is a log of {other[0]}, which is not read: {other[1]}; {INSTEAD}"
    return (
        f"{name} has no steps: no line with `{_LINE} (ms):` as Megatron-LM logs them, none with "
        "`train_step_timing in s` as NeMo does, none with `step:` and `tps:` as torchtitan does"
    )


def _is_marked(line: str) -> bool:
    return any(map(line.__contains__, MARKS))  # far sooner told than by one pattern of them all


def _plain(line: str) -> str:
    """A line without colours, cut where it is longer than any that is read."""
    return (_COLOURS.sub("", line) if _COLOURED in line else line)[:MOST_LINE]


def _rank_of(line: str) -> str:
    found = _RANK.match(line)
    return found[0].strip()[:LONGEST_LABEL] if found else ""


def _unlabelled(line: str) -> str:
    """A line without the label of its rank."""
    found = _RANK.match(line)
    return line[found.end() :] if found else line


def _iteration(line: str) -> tuple[int, float] | None:
    """The number of Megatron-LM's step in a line, and its seconds."""
    if _LINE not in line or not (step := _ITERATION.search(line)):
        return None
    elapsed = _ELAPSED.search(line, step.end())
    return (int(step[1]), _number(elapsed[2]) * UNITS_S[elapsed[1]]) if elapsed else None


def _take_iteration(found: _Found, line: str) -> None:
    """What a line of Megatron-LM's says of a step."""
    step, rate = _iteration(line), _RATE.search(line)
    assert step is not None
    flops_per_s = _number(rate[1]) * TERA if rate else None
    found.lines += [(*step, flops_per_s)] if _is_time(step[1]) else []
    if batch := _BATCH.search(line):
        found.batches[int(batch[1])] = None


def _take_beside(found: _Found, line: str) -> None:
    """What a line of any rank says of memory and timers."""
    if peak := _ALLOCATED.search(line):
        found.peaks.append(_number(peak[1]) * MIB)
    elif (timer := _TIMER.match(line)) and (
        timer[1] in found.timers or len(found.timers) < MOST_TIMERS
    ):
        found.timers.setdefault(timer[1], []).append(_number(timer[3]) * 1e-3)


def _of_nemo(steps: NemoSteps) -> _Found:
    timed = [each for each in steps.from_one() if _is_time(each[1])]
    found = _Found(timed, steps.allocated, steps.batches)
    found.reserved = steps.reserved
    return found


def _titan_step(line: str) -> tuple[int, float] | None:
    """The number of torchtitan's step in a line, and its tokens per second and device."""
    if "step:" not in line or not (step := _STEP.search(line)):
        return None
    tokens = _TOKENS.search(line, step.end())
    return (int(step[1]), _number(tokens[1])) if tokens else None


def _take_titan(found: _Found, tokens_per_device: float, line: str) -> None:
    step, rate, peak = _titan_step(line), _TFLOPS.search(line), _RESERVED.search(line)
    assert step is not None
    step_s = tokens_per_device / max(step[1], LEAST_NUMBER)
    flops_per_s = _number(rate[1]) * TERA if rate else None
    found.lines += [(step[0], step_s, flops_per_s)] if _is_time(step_s) else []
    found.peaks += [_number(peak[1]) * GIB] if peak else []


def _job(kind: str, found: _Found, others: int, sizes: dict[str, int]) -> MeasuredJob:
    entries, starts = numbered(found.lines)
    remarks = list(_remarks(kind, entries, starts, others, list(found.batches)))
    if found.reserved and found.peaks:
        remarks.append(f"{max(found.reserved) / GIB:.1f} GiB of one device were reserved")
    batches = list(found.batches)
    ranks, batch = sizes.pop(DEVICES, None), sizes.pop(BATCH, None)
    return MeasuredJob(
        kind=kind,
        entries=entries,
        starts=starts,
        peak_bytes=max(found.peaks, default=None),
        peak_of="reserved" if kind == TORCHTITAN else "allocated",
        batch=batches[0] if len(batches) == 1 else None if batches else batch,
        ranks=ranks,
        sizes=sizes,
        timers_s={name: float(np.median(values)) for name, values in found.timers.items()},
        remarks=tuple(remarks),
    )


def _remarks(
    kind: str,
    entries: Sequence[LoggedSteps],
    starts: Sequence[int],
    others: int,
    batches: Sequence[int],
) -> Iterator[str]:
    most = max(each.last - each.first + 1 for each in entries)
    if most > 1:
        yield f"a line of the log is the mean of up to {most:,} steps: single steps scatter more"
    if len(starts) > 1:
        yield f"the job started {len(starts):,} times, the last time before step {starts[-1]:,}"
    if others:
        yield f"of {others + 1:,} ranks in the log one counts"
    if len(batches) > 1:
        yield f"the batch size changes, from {batches[0]:,} to {batches[-1]:,} sequences"
    if kind == TORCHTITAN:
        yield "seconds are those of the step's tokens at the logged tokens/s"


def _is_time(seconds: float) -> bool:
    return 0 < seconds < LONGEST_S


def _number(text: str) -> float:
    return float(text.replace(",", ""))
