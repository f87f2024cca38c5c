"""A measured job: how long its steps took, and what else its log says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

import numpy as np

from topologies.records import record
from validation.jobs.anatomy import Anatomy
from validation.jobs.errors import LogError

WARM_UP = 5  # steps of a job or of its restart, in which caches fill and kernels are chosen
PERCENTILES = (10, 50, 90)


@record
class LoggedSteps:
    """The steps `first` to `last` of a job, numbered from 1, which took `step_s` seconds each in
    the mean; `flops_per_s` are those per device as the log counts them, where it does."""

    first: int
    last: int
    step_s: float
    flops_per_s: float | None = None


@record(slots=False)
class MeasuredJob:
    """What a log or a trace says of a job.

    `starts` are the numbers of the first steps after each start of the job. `peak_bytes` is the
    most memory of one device that was in use, and `peak_of` says what of it is counted: what was
    `allocated` for tensors, or all that the allocator had `reserved`. `batch`, `plan`, `ranks` and
    `sizes` (by the names of `logged_sizes`) are the job's own, where the log has them. `timers_s`
    are the seconds of named parts of a step.
    """

    kind: str
    entries: tuple[LoggedSteps, ...]
    warm_up: int = WARM_UP
    starts: tuple[int, ...] = (1,)
    peak_bytes: float | None = None
    peak_of: str = "allocated"
    batch: int | None = None
    plan: str = ""
    ranks: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    timers_s: Mapping[str, float] = field(default_factory=dict)
    anatomy: Anatomy | None = None
    remarks: tuple[str, ...] = ()


@record
class StepStatistics:
    """The measured steps that count: percentiles of their seconds, how many steps they are, in how
    many lines of the log, and how many steps were left out as warm-up."""

    p10_s: float
    median_s: float
    p90_s: float
    steps: int
    lines: int
    left_out: int
    flops_per_s: float | None

    def as_dict(self) -> dict[str, Any]:
        """The statistics as they stand in JSON."""
        return asdict(self)


def statistics(job: MeasuredJob, warm_up: int | None = None) -> StepStatistics:
    """Percentiles of the job's steps after `warm_up` steps of each start; a line of a log that
    averages several steps counts once, and is left out if one of them is.

    A LogError if no step is left.
    """
    least = job.warm_up if warm_up is None else warm_up
    counted = [each for each in job.entries if not _warms_up(each, job.starts, least)]
    left_out = _steps(job.entries) - _steps(counted)
    if not counted:
        raise LogError(
            f"all {left_out:,} measured steps are among the first {least} of a start, which are "
            "left out as warm-up; measure more steps, or give --warm-up 0"
        )
    seconds = np.array([each.step_s for each in counted])
    low, middle, high = np.percentile(seconds, PERCENTILES).tolist()
    rates = [each.flops_per_s for each in counted if each.flops_per_s is not None]
    return StepStatistics(
        p10_s=low,
        median_s=middle,
        p90_s=high,
        steps=_steps(counted),
        lines=len(counted),
        left_out=left_out,
        flops_per_s=float(np.median(rates)) if rates else None,
    )


def _steps(entries: Sequence[LoggedSteps]) -> int:
    return sum(each.last - each.first + 1 for each in entries)


def _warms_up(entry: LoggedSteps, starts: Sequence[int], least: int) -> bool:
    return any(start <= entry.last and entry.first < start + least for start in starts)


def numbered(
    lines: Sequence[tuple[int, float, float | None]],
) -> tuple[tuple[LoggedSteps, ...], tuple[int, ...]]:
    """The steps of a log's lines, each the number of a step, the mean seconds of the steps since
    the line before and their FLOP/s, and where the job started.

    A number no larger than the one before is a restart. The first line after a start is taken for
    as many steps as lie between the next two, as far as there are that many.
    """
    entries: list[LoggedSteps] = []
    starts: list[int] = []
    before = 0
    for at, (number, step_s, flops_per_s) in enumerate(lines):
        if at == 0 or number <= before:
            after = lines[at + 1][0] if at + 1 < len(lines) else 0
            interval = after - number if after > number else 1
            before = max(number - interval, 0)
            starts.append(before + 1)
        entries.append(LoggedSteps(before + 1, number, step_s, flops_per_s))
        before = number
    return tuple(entries), tuple(starts)
