"""Steps in the log of NeMo: of its lines, and of the progress bar of its earlier releases.

Sources: github.com/NVIDIA/NeMo, nemo/lightning/pytorch/callbacks: progress_printer.py (`Training
epoch E, iteration I/N | …`), memory_profiler.py and flops_callback.py; before 2.0 its progress bar,
nemo/collections/nlp/parts/nlp_overrides.py (`train_step_timing in s`, `global_step`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MARK = "train_step_timing in s"
_VALUE = r"[:=] ?(\d{1,15}(?:\.\d{1,15})?(?:[eE][+-]?\d{1,3})?)(?=[\s,\]|]|$)"
_STEP = re.compile(r"\biteration (\d{1,12})/|\| (\d{1,12})/\d+ \[")
_TIMING = re.compile(rf"\b{MARK}{_VALUE}")
_NUMBER = re.compile(rf"\bglobal_step{_VALUE}")
_BATCH = re.compile(rf"\bglobal_batch_size{_VALUE}")
_SAMPLES = re.compile(rf"\bconsumed_samples{_VALUE}")
_ALLOCATED = re.compile(rf"\bmax_memory_allocated{_VALUE}")
_RESERVED = re.compile(rf"\bmax_memory_reserved{_VALUE}")
_RATE = re.compile(rf"\bTFLOPS_per_GPU{_VALUE}")
TERA = 1e12


@dataclass
class NemoSteps:
    """What lines of one rank say: of each step its number, its seconds and its FLOP/s per device;
    the batches, and the most bytes of one device that were allocated and reserved."""

    lines: list[tuple[int, float, float | None]] = field(default_factory=list)
    batches: dict[int, None] = field(default_factory=dict)
    allocated: list[float] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)
    _before: int | None = None
    _samples: float = 0.0

    def take(self, line: str) -> None:
        """Take in a line that has a step; a progress bar that is drawn again says the same one."""
        if (step := step_of(line)) is None:
            return
        number, before = _number(_NUMBER, line), self._before
        at = step[0] if number is None else int(number)
        if at == before:
            return
        rate = _number(_RATE, line)
        self.lines.append((at, step[1], None if rate is None else rate * TERA))
        batch, consumed = _number(_BATCH, line), _number(_SAMPLES, line) or 0.0
        if batch is None and before is not None and at > before and consumed > self._samples > 0:
            batch = (consumed - self._samples) / (at - before)
        if batch:
            self.batches[int(batch)] = None
        for pattern, sizes in ((_ALLOCATED, self.allocated), (_RESERVED, self.reserved)):
            if (size := _number(pattern, line)) is not None:
                sizes.append(size)
        self._before, self._samples = at, consumed

    def from_one(self) -> list[tuple[int, float, float | None]]:
        """The steps, numbered from 1."""
        from_zero = any(at == 0 for at, _, _ in self.lines)
        return [(at + from_zero, seconds, rate) for at, seconds, rate in self.lines]


def step_of(line: str) -> tuple[int, float] | None:
    """The number of a line's step and its seconds, which stand behind it, the last of them."""
    if MARK not in line or not (step := _STEP.search(line)):
        return None
    timings = list(_TIMING.finditer(line, step.end()))
    return (int(step[1] or step[2]), float(timings[-1][1])) if timings else None


def _number(pattern: re.Pattern[str], line: str) -> float | None:
    value = pattern.search(line)
    return float(value[1]) if value else None
