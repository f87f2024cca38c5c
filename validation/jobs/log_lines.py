"""A job's steps from the log of Megatron-LM, of what builds on it, of NeMo, or of torchtitan.

Sources of the formats: github.com/NVIDIA/Megatron-LM, megatron/training/training.py (training_log),
megatron/training/utils/common_utils.py (report_memory), megatron/core/timers.py;
github.com/microsoft/Megatron-DeepSpeed, megatron/training.py (seconds, `TFLOPs`);
github.com/pytorch/torchtitan, torchtitan/components/metrics.py (log).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from topologies.files.printable import shown
from validation.jobs.errors import LogError
from validation.jobs.logged_sizes import BATCH, DEVICES, logged_sizes
from validation.jobs.measured_job import LoggedSteps, MeasuredJob, numbered
from validation.jobs.nemo_log import STEP as NEMO_STEP
from validation.jobs.nemo_log import nemo_steps
from validation.jobs.other_logs import INSTEAD, other_log

_NUMBER = r"([\d,]+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Of torchrun (`[default7]:`) and of srun --label (`0: `), perhaps both; a time as 10:00:04 is none.
_RANK = re.compile(
    r"(?:\s*(?:\[[A-Za-z_-]*\d{1,7}\]:|\d{1,7}:(?=\s|\[)|(?:rank|default)\d{1,7}:))+"
)
# A number counts only with what follows it, since a line may be cut off within one; AMD's Primus
# has the mean so far behind a stroke (AMD-AGI/Primus, docs/04-technical-guides).
_ITERATION = re.compile(rf"iteration\s+(\d{{1,12}})/\s*\d+ \|.*?elapsed time per iteration "
                        rf"\((ms|s)\): {_NUMBER}(?: ?/ ?[\d,.eE+-]+)? \|")  # fmt: skip
_LINE = "elapsed time per iteration"
_RATE = re.compile(
    rf"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs): {_NUMBER}(?: ?/ ?[\d,.eE+-]+)? \|"
)
_BATCH = re.compile(r"global batch size:\s*(\d{1,12}) \|")
_ALLOCATED = re.compile(rf"\| max allocated: {_NUMBER} \|")
_TIMER = re.compile(rf"^\s*([\w-]+) \.{{2,}}: \({_NUMBER}, {_NUMBER}\)\s*$")
_STEP = re.compile(rf"\bstep:\s*(\d{{1,12}})\s+loss:.*?\b(?:tps|wps): {_NUMBER}\s+\S")
_RESERVED = re.compile(rf"memory:\s*{_NUMBER}GiB")
_TFLOPS = re.compile(rf"tflops: {_NUMBER}\s+mfu")
MEGATRON, TORCHTITAN, NEMO = "log of Megatron-LM", "log of torchtitan", "log of NeMo"
MOST_LINE = 10_000  # characters of a line that are looked at
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


def read_log(text: str, name: str, tokens_per_device: float) -> MeasuredJob:
    """The job of a log's text.

    torchtitan logs tokens per second and device, of which `tokens_per_device` are a step. Where
    lines of several ranks are in one log, steps are those of the first rank that logged one;
    Megatron-LM logs steps on the last rank, and memory and arguments on the first.
    """
    lines = [_COLOURS.sub("", line[:MOST_LINE]) for line in text.splitlines()]
    for kind, pattern in ((MEGATRON, _ITERATION), (NEMO, NEMO_STEP), (TORCHTITAN, _STEP)):
        mine, others = _of_one_rank(lines, pattern)
        if mine and kind == MEGATRON:
            found = _megatron(mine, [_unlabelled(line) for line in lines])
        elif kind == NEMO:
            found = _nemo(mine)
        else:
            found = _torchtitan(mine, tokens_per_device)
        if found.lines:
            sizes = logged_sizes(_unlabelled(line) for line in lines)
            return _job(kind, found, others, sizes)
    raise LogError(_no_steps(name, lines))


def _no_steps(name: str, lines: Sequence[str]) -> str:
    """Why a log has no steps, and what would be read."""
    if cut := next((line for line in lines if _LINE in line), None):
        value = shown(cut[cut.index(_LINE) :][:80])
        return f"{name} has no steps: what it has of a step's time is not read, as {value}"
    if (other := other_log([_unlabelled(line) for line in lines])) is not None:
        return f"{name} is a log of {other[0]}, which is not read: {other[1]}; {INSTEAD}"
    return (
        f"{name} has no steps: no line with `{_LINE} (ms):` as Megatron-LM logs them, none with "
        "`train_step_timing in s` as NeMo does, none with `step:` and `tps:` as torchtitan does"
    )


def _of_one_rank(lines: Sequence[str], pattern: re.Pattern[str]) -> tuple[list[str], int]:
    """The lines of the first rank that logged a step, and how many other ranks there are; none
    where no line has a step."""
    logged = [_rank_of(line) for line in lines if pattern.search(line)]
    if not logged:
        return [], 0
    return [line for line in lines if _rank_of(line) == logged[0]], len(set(logged)) - 1


def _rank_of(line: str) -> str:
    found = _RANK.match(line)
    return found[0].strip() if found else ""


def _unlabelled(line: str) -> str:
    """A line without the label of its rank."""
    found = _RANK.match(line)
    return line[found.end() :] if found else line


def _megatron(mine: Sequence[str], lines: Sequence[str]) -> _Found:
    """What the lines of one rank say of its steps, and those of all ranks of all else."""
    found = _Found()
    for line in mine:
        if step := _ITERATION.search(line):
            step_s, rate = _number(step[3]) * UNITS_S[step[2]], _RATE.search(line)
            flops_per_s = _number(rate[1]) * TERA if rate else None
            found.lines += [(int(step[1]), step_s, flops_per_s)] if _is_time(step_s) else []
            if batch := _BATCH.search(line):
                found.batches[int(batch[1])] = None
    for line in lines:
        if peak := _ALLOCATED.search(line):
            found.peaks.append(_number(peak[1]) * MIB)
        elif timer := _TIMER.match(line):
            found.timers.setdefault(timer[1], []).append(_number(timer[3]) * 1e-3)
    return found


def _nemo(lines: Sequence[str]) -> _Found:
    steps = nemo_steps(lines)
    timed = [each for each in steps.lines if _is_time(each[1])]
    found = _Found(timed, steps.allocated, steps.batches)
    found.reserved = steps.reserved
    return found


def _torchtitan(lines: Sequence[str], tokens_per_device: float) -> _Found:
    found = _Found()
    for line in lines:
        if step := _STEP.search(line):
            rate, peak = _TFLOPS.search(line), _RESERVED.search(line)
            step_s = tokens_per_device / max(_number(step[2]), LEAST_NUMBER)
            flops_per_s = _number(rate[1]) * TERA if rate else None
            found.lines += [(int(step[1]), step_s, flops_per_s)] if _is_time(step_s) else []
            found.peaks += [_number(peak[1]) * GIB] if peak else []
    return found


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
