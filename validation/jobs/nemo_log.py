"""Steps in the log of NeMo: of its lines, and of the progress bar of its earlier releases.

Sources: github.com/NVIDIA/NeMo, nemo/lightning/pytorch/callbacks: progress_printer.py (`Training
epoch E, iteration I/N | …`), memory_profiler.py and flops_callback.py; before 2.0 its progress bar,
nemo/collections/nlp/parts/nlp_overrides.py (`train_step_timing in s`, `global_step`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_VALUE = r"[:=] ?(\d{1,15}(?:\.\d{1,15})?(?:[eE][+-]?\d{1,3})?)(?=[\s,\]|]|$)"
STEP = re.compile(rf"(?:\biteration (\d{{1,12}})/|\| (\d{{1,12}})/\d+ \[).*"
                  rf"\btrain_step_timing in s{_VALUE}")  # fmt: skip
_NUMBER = re.compile(rf"\bglobal_step{_VALUE}")
_BATCH = re.compile(rf"\bglobal_batch_size{_VALUE}")
_SAMPLES = re.compile(rf"\bconsumed_samples{_VALUE}")
_ALLOCATED = re.compile(rf"\bmax_memory_allocated{_VALUE}")
_RESERVED = re.compile(rf"\bmax_memory_reserved{_VALUE}")
_RATE = re.compile(rf"\bTFLOPS_per_GPU{_VALUE}")
TERA = 1e12


@dataclass
class NemoSteps:
    """What lines say: of each step its number, its seconds and its FLOP/s per device; the batches,
    and the most bytes of one device that were allocated and reserved."""

    lines: list[tuple[int, float, float | None]] = field(default_factory=list)
    batches: dict[int, None] = field(default_factory=dict)
    allocated: list[float] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)


def nemo_steps(lines: Iterable[str]) -> NemoSteps:
    """The steps of one rank's lines; a progress bar that is drawn again says the same step."""
    found, before, samples = NemoSteps(), None, 0.0
    for line in lines:
        if not (step := STEP.search(line)):
            continue
        number = _number(_NUMBER, line)
        at = int(step[1] or step[2]) if number is None else int(number)
        if at == before:
            continue
        rate = _number(_RATE, line)
        found.lines.append((at, float(step[3]), None if rate is None else rate * TERA))
        batch, consumed = _number(_BATCH, line), _number(_SAMPLES, line) or 0.0
        if batch is None and before is not None and at > before and consumed > samples > 0:
            batch = (consumed - samples) / (at - before)
        if batch:
            found.batches[int(batch)] = None
        for pattern, sizes in ((_ALLOCATED, found.allocated), (_RESERVED, found.reserved)):
            if (size := _number(pattern, line)) is not None:
                sizes.append(size)
        before, samples = at, consumed
    from_zero = any(at == 0 for at, _, _ in found.lines)
    found.lines = [(at + from_zero, *rest) for at, *rest in found.lines]  # type: ignore[misc]
    return found


def _number(pattern: re.Pattern[str], line: str) -> float | None:
    value = pattern.search(line)
    return float(value[1]) if value else None
