"""A job's steps from a file that a program wrote: JSON lines of steps, `simgpt run --json`, or the
state that the Trainer of transformers saves.

Sources of the keys, on GitHub: pytorch/torchtitan, torchtitan/components/metrics.py (log);
meta-pytorch/torchtune, torchtune/training/metric_logging.py; NVIDIA/NeMo,
nemo/lightning/pytorch/callbacks; hiyouga/LLaMA-Factory, src/llamafactory/train/callbacks.py
(trainer_log.jsonl); huggingface/transformers, src/transformers/trainer_callback.py (TrainerState)
and trainer_utils.py (speed_metrics); wandb/wandb, whose histories number their rows as _step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from topologies.files.budget import Budget
from topologies.files.reading import UserFile
from topologies.files.schema import LEAST_NUMBER, MOST_NUMBER
from validation.jobs.errors import LogError
from validation.jobs.measured_job import LoggedSteps, MeasuredJob, numbered
from validation.jobs.step_lines import by_clock
from workload.plan_text import plan_now

LOG = UserFile("log", LogError, constants=True)
LONGEST = 2**20  # characters of a line in JSON
MOST_STEPS = 1_000_000
MOST_STEP = 10**9
KEYS = "step, step_s, and, where known, peak_bytes and flops_per_s_per_device"
# What else is read of JSON lines, by the names of frameworks, with its unit in SI.
NUMBERS = ("step", "global_step", "iteration", "current_steps", "_step")
SECONDS = {
    "step_s": 1.0,
    "seconds": 1.0,  # of `simgpt run --log-file`
    "time_metrics/end_to_end(s)": 1.0,
    "train_step_timing in s": 1.0,
    "elapsed_time_per_iteration_ms": 1e-3,
}
RATES = ("tokens_per_second_per_gpu", "tps", "throughput(tps)")
PEAKS = {  # allocated first
    "peak_bytes": ("allocated", 1.0),
    "max_memory_allocated": ("allocated", 1.0),
    "peak_memory_alloc": ("allocated", 2.0**30),
    "peak_memory_active": ("allocated", 2.0**30),
    "memory/max_active(GiB)": ("allocated", 2.0**30),
    "memory/max_reserved(GiB)": ("reserved", 2.0**30),
}
FLOPS = {"flops_per_s_per_device": 1.0, "tflops": 1e12, "TFLOPS_per_GPU": 1e12}
CLOCK = "elapsed_time"  # of LLaMA-Factory's lines, as 1:02:03
_CLOCK = re.compile(r"\d{1,5}(?::\d\d){1,2}")
HISTORY, RUNTIME = "log_history", "train_runtime"  # of trainer_state.json
WHOLE = "the step is the mean of the whole run, including its first steps and evaluation"


def is_lines(begun: str) -> bool:
    """Whether a text in JSON, of which this is the beginning, is one record a line, rather than one
    that spans all lines."""
    first, _, rest = begun.strip().partition("\n")
    has_step = any(f'"{key}"' in first for key in (*SECONDS, *RATES, CLOCK))
    several = bool(rest.strip()) or has_step
    return first.rstrip().endswith("}") and several and '"steps_s"' not in first


@dataclass
class _Lines:
    """What JSON lines have said so far; `why` is the reason of the first `broken` line."""

    found: list[tuple[int, float, float | None]] = field(default_factory=list)
    clock: list[tuple[int, float]] = field(default_factory=list)
    peaks: dict[str, float] = field(default_factory=dict)
    rate: str = ""
    broken: int = 0
    why: str = ""

    def take(self, line: str, origin: str, device_tokens: float | None) -> None:
        """Take in a line; a LogError says why it is not a step."""
        record = LOG.parsed(line, origin)
        number = next((record[k] for k in NUMBERS if k in record), None) if _is(record) else None
        seconds = _first(record, SECONDS, origin)
        rate = next((key for key in RATES if _is(record) and key in record), "")
        clock_s = _clock_s(record)
        if seconds is None and rate and (tokens := _positive(record, rate, origin)):
            if device_tokens is None:
                raise LogError(f"{origin} has {rate}, but the tokens of a step are unknown")
            seconds, self.rate = device_tokens / tokens, rate
        is_number = type(number) is int and 0 <= number <= MOST_STEP
        if not is_number or (seconds is None and clock_s is None):
            raise LogError(f"{origin} is not a step: a line needs {KEYS}, or {RATES[0]}")
        assert isinstance(number, int)
        if seconds is None:
            assert clock_s is not None
            self.clock.append((number, clock_s))
        else:
            self.found.append((number, seconds, _first(record, FLOPS, origin)))
        for key, (kind, unit) in PEAKS.items():
            if (peak := _positive(record, key, origin)) is not None:
                self.peaks[kind] = max(peak * unit, self.peaks.get(kind, 0.0))


def read_lines(lines: Iterable[str], name: str, device_tokens: float | None = None) -> MeasuredJob:
    """Read lines like {"step": 7, "step_s": 1.25}, with their line ends; steps are numbered from 0
    or 1. In place of step_s a line may have tokens per second and device; `device_tokens` is then
    their number per step.

    A line may have `peak_bytes` of memory allocated on one device, and `flops_per_s_per_device`;
    other keys are ignored. Lines that are not steps are left out and counted; if no line is a step,
    a LogError says why the first is not.
    """
    log, is_cut = _Lines(), False
    steps = Budget(name, "steps", MOST_STEPS, LogError)
    for number, line in enumerate(lines, start=1):
        origin = f"line {number} of {name}"
        if len(line) > LONGEST:
            raise LogError(f"{origin} is longer than {LONGEST:,} characters")
        is_cut = line.splitlines() == [line] and not line.rstrip().endswith("}")
        if not line.strip() or is_cut:
            continue
        steps.charge(1)
        try:
            log.take(line, origin, device_tokens)
        except LogError as error:
            log.broken, log.why = log.broken + 1, log.why or str(error)
    if log.clock and not log.found:
        entries, starts = by_clock(log.clock)
    else:
        from_zero = any(step == 0 for step, *_ in log.found)
        entries, starts = numbered([(n + from_zero, s, rate) for n, s, rate in log.found])
    if not entries:
        raise LogError(log.why or f"{name} has no steps; a line needs {KEYS}")
    kind = next((each for each in ("allocated", "reserved") if each in log.peaks), "allocated")
    return MeasuredJob(
        kind="JSON lines of steps",
        entries=entries,
        starts=starts,
        peak_bytes=log.peaks.get(kind),
        peak_of=kind,
        remarks=tuple(_remarks(log, is_cut)),
    )


def _remarks(log: _Lines, is_cut: bool) -> Iterator[str]:
    if is_cut:
        yield "the last line is cut off, and was left out"
    if log.broken:
        lines = (
            "1 line is not a step and was"
            if log.broken == 1
            else f"{log.broken:,} lines are not steps and were"
        )
        yield f"{lines} left out"
    if log.rate:
        yield f"step times are computed from the logged {log.rate}"
    if log.clock and not log.found:
        yield f"step times are differences of {CLOCK} between lines"


def read_answer(text: str, name: str) -> MeasuredJob:
    """The job of a file of one record: of `simgpt run --json`, or trainer_state.json."""
    record = LOG.parsed(text, name)
    if isinstance(record, dict) and HISTORY in record:
        return _read_state(record, name)
    return read_run(record, name)


def _read_state(record: Mapping[str, Any], name: str) -> MeasuredJob:
    """The job of a Trainer's state: its last entry has the time of the whole run, evaluation
    included."""
    history = record[HISTORY]
    ends = [each for each in history if _is(each) and RUNTIME in each] if _is_list(history) else []
    if not ends:
        raise LogError(
            f"{name} is the state of an unfinished run of transformers, which has no times: "
            f"{RUNTIME} and train_steps_per_second are written when the run ends"
        )
    runtime_s = _positive(ends[-1], RUNTIME, name)
    steps = ends[-1].get("step", record.get("global_step"))
    if runtime_s is None or type(steps) is not int or not 0 < steps <= MOST_STEP:
        raise LogError(f"{name}: the last entry has no step number above 0")
    return MeasuredJob(
        kind="state of the Trainer of transformers",
        entries=(LoggedSteps(1, steps, runtime_s / steps),),
        warm_up=0,
        remarks=(WHOLE,),
    )


def read_run(record: Any, name: str) -> MeasuredJob:
    """The job of what `simgpt run --json` wrote."""
    steps = record.get("steps_s") if isinstance(record, dict) else None
    if not isinstance(steps, list) or not steps:
        raise LogError(f"{name} is not an output of `simgpt run --json`: it has no list steps_s")
    seconds = [_positive({"steps_s": each}, "steps_s", name) for each in steps]
    return MeasuredJob(
        kind="answer of simgpt run",
        entries=tuple(LoggedSteps(n, n, s) for n, s in enumerate(seconds, start=1) if s),
        peak_bytes=_positive(record, "peak_bytes", name),
        batch=_batch(record),
        plan=plan_now(str(record.get("plan_string", ""))),
        ranks=record["ranks"] if type(record.get("ranks")) is int else None,
    )


def _batch(record: Mapping[str, Any]) -> int | None:
    plan = record.get("plan")
    batch = plan.get("batch") if isinstance(plan, dict) else None
    return batch if type(batch) is int else None


def _is(record: Any) -> bool:
    return isinstance(record, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _first(record: Any, keys: Mapping[str, float], origin: str) -> float | None:
    """The first of some keys that a record has, in SI units."""
    for key, unit in keys.items():
        if (value := _positive(record, key, origin)) is not None:
            return value * unit
    return None


def _clock_s(record: Any) -> float | None:
    """Seconds on a record's clock; None without one."""
    text = record.get(CLOCK) if _is(record) else None
    parts = text.split(":") if isinstance(text, str) and _CLOCK.fullmatch(text) else []
    return sum(60.0**at * int(part) for at, part in enumerate(reversed(parts))) if parts else None


def _positive(record: Any, key: str, origin: str) -> float | None:
    """A number above 0 of a record; none where it is not there or null."""
    value = record.get(key) if isinstance(record, dict) else None
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not LEAST_NUMBER < value < MOST_NUMBER:
        raise LogError(f"{origin}: {key} = {value!r} is not a number above 0")
    return float(value)
