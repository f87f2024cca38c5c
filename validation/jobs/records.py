"""A job's steps from a file that a program wrote: JSON lines of steps, or `simgpt run --json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from topologies.files.budget import Budget
from topologies.files.reading import UserFile
from topologies.files.schema import LEAST_NUMBER, MOST_NUMBER
from validation.jobs.errors import LogError
from validation.jobs.measured_job import LoggedSteps, MeasuredJob, numbered

LOG = UserFile("log", LogError)
LONGEST = 2**20  # characters of a line in JSON
MOST_STEPS = 1_000_000
MOST_STEP = 10**9
KEYS = "step, step_s, and, where known, peak_bytes and flops_per_s_per_device"
RATES = ("tokens_per_second_per_gpu", "tps")  # of torchtune, and of torchtitan's metrics


def is_lines(begun: str) -> bool:
    """Whether a text in JSON, of which this is the beginning, is one record a line, rather than one
    that spans all lines."""
    first, _, rest = begun.strip().partition("\n")
    has_step = any(f'"{key}"' in first for key in ("step_s", *RATES))
    several = bool(rest.strip()) or has_step
    return first.rstrip().endswith("}") and several and '"steps_s"' not in first


def read_lines(lines: Iterable[str], name: str, tokens_per_device: float = 0.0) -> MeasuredJob:
    """The job of lines like {"step": 7, "step_s": 1.25}, with their ends; steps are numbered from 0
    or 1. Without step_s a line may have tokens per second and device, of which `tokens_per_device`
    are a step.

    A line may have `peak_bytes` of memory allocated on one device, and `flops_per_s_per_device`;
    what else it has is not looked at. A last line without its end is left out, and said.
    """
    found, peaks, rates, is_cut = [], [], "", False
    steps = Budget(name, "steps", MOST_STEPS, LogError)
    for number, line in enumerate(lines, start=1):
        origin = f"line {number} of {name}"
        if len(line) > LONGEST:
            raise LogError(f"{origin} is longer than {LONGEST:,} characters")
        is_cut = line.splitlines() == [line] and not line.rstrip().endswith("}")
        if line.strip() and not is_cut:
            steps.charge(1)
            record = LOG.parsed(line, origin)
            step = record.get("step") if isinstance(record, dict) else None
            seconds = _positive(record, "step_s", origin)
            for key in RATES if seconds is None else ():
                if (tokens := _positive(record, key, origin)) is not None:
                    seconds, rates = tokens_per_device / tokens, key
            if type(step) is not int or not 0 <= step <= MOST_STEP or seconds is None:
                raise LogError(f"{origin} is no step: a line has {KEYS}, or {RATES[0]}")
            rate = _positive(record, "flops_per_s_per_device", origin)
            found.append((step, seconds, rate))
            peak = _positive(record, "peak_bytes", origin)
            peaks += [] if peak is None else [peak]
    if not found:
        raise LogError(f"{name} has no steps; a line has {KEYS}")
    first = 0 if min(step for step, _, _ in found) else 1
    entries, starts = numbered([(step + first, seconds, rate) for step, seconds, rate in found])
    return MeasuredJob(
        kind="JSON lines of steps",
        entries=entries,
        starts=starts,
        peak_bytes=max(peaks, default=None),
        remarks=(
            *(("the last line is cut off, and was left out",) if is_cut else ()),
            *((f"seconds are those of the step's tokens at the logged {rates}",) if rates else ()),
        ),
    )


def read_run(text: str, name: str) -> MeasuredJob:
    """The job of what `simgpt run --json` wrote."""
    record = LOG.parsed(text, name)
    steps = record.get("steps_s") if isinstance(record, dict) else None
    if not isinstance(steps, list) or not steps:
        raise LogError(f"{name} is no answer of `simgpt run --json`: it has no list steps_s")
    seconds = [_positive({"steps_s": each}, "steps_s", name) for each in steps]
    return MeasuredJob(
        kind="answer of simgpt run",
        entries=tuple(LoggedSteps(n, n, s) for n, s in enumerate(seconds, start=1) if s),
        peak_bytes=_positive(record, "peak_bytes", name),
        batch=_batch(record),
        plan=str(record.get("plan_string", "")),
        ranks=record["ranks"] if type(record.get("ranks")) is int else None,
    )


def _batch(record: Mapping[str, Any]) -> int | None:
    plan = record.get("plan")
    batch = plan.get("batch") if isinstance(plan, dict) else None
    return batch if type(batch) is int else None


def _positive(record: Any, key: str, origin: str) -> float | None:
    """A number above 0 of a record; none where it is not there or null."""
    value = record.get(key) if isinstance(record, dict) else None
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not LEAST_NUMBER < value < MOST_NUMBER:
        raise LogError(f"{origin}: {key} = {value!r} is no number above 0")
    return float(value)
