"""The formats in which frameworks log steps, as `log_formats.toml` has them with their sources."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from topologies.files.reading import shipped_toml
from topologies.records import record

NUMBER = r"([\d,]{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?)"
ROUNDED = r"(\d{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?[KMBGTPE]?)"
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
STEPS, SAMPLES = "steps", "samples"  # what a clock's numbers count
# What of a quantity is kept, and its unit in SI.
SECONDS, STEPS_PER_S, SAMPLES_PER_S = "seconds", "steps_per_s", "samples_per_s"
DEVICE_TOKENS_PER_S, CLOCK, RUNTIME = "device_tokens_per_s", "clock_s", "runtime_s"
FLOPS, BATCH, SEQUENCE, CONSUMED = "flops_per_s", "batch", "sequence", "consumed"
TOTAL = "total"  # steps to which a progress bar counts
ALLOCATED, RESERVED, DEVICE = "allocated", "reserved", "device"
MEMORY = (ALLOCATED, RESERVED, DEVICE)  # the one that is compared first
BYTES = {"bytes": 1.0, "gb": 1e9, "gib": 2.0**30, "mb": 1e6, "mib": 2.0**20}
VALUE_UNITS: Mapping[str, tuple[str, float]] = {
    **{"s": (SECONDS, 1.0), "ms": (SECONDS, 1e-3), "steps_per_s": (STEPS_PER_S, 1.0)},
    **{"samples_per_s": (SAMPLES_PER_S, 1.0), "device_tokens_per_s": (DEVICE_TOKENS_PER_S, 1.0)},
    **{"clock": (CLOCK, 1.0), "clock_ms": (CLOCK, 1e-3), "runtime_s": (RUNTIME, 1.0)},
    **{"tflops": (FLOPS, 1e12), "flops_per_s": (FLOPS, 1.0), "batch": (BATCH, 1.0)},
    **{"sequence": (SEQUENCE, 1.0), "consumed": (CONSUMED, 1.0), "total": (TOTAL, 1.0)},
    **{f"{of}_{unit}": (of, size) for of in MEMORY for unit, size in BYTES.items()},
}


@record(slots=False)
class Values:
    """Patterns of quantities: the quantity, the unit of its number in SI, and the pattern."""

    patterns: tuple[tuple[str, float, re.Pattern[str]], ...]

    def found(self, line: str) -> dict[str, float]:
        """The quantities of a line in SI units, of each its last mention."""
        found: dict[str, float] = {}
        for quantity, unit, pattern in self.patterns:
            texts = pattern.findall(line)
            number = _number(texts[-1]) if texts else None
            if number is not None and math.isfinite(number * unit):
                found[quantity] = number * unit
        return found


@record(slots=False, kw_only=True)
class Format:
    """A format of steps; `log_formats.toml` explains the fields."""

    name: str
    mark: str
    steps: tuple[re.Pattern[str], ...]
    values: Values
    several_lines: bool = False
    alone: bool = False
    whole: bool = False
    clock: bool = False
    counts: str = STEPS
    unless: re.Pattern[str] | None = None
    needs: re.Pattern[str] | None = None
    said: str = ""

    def begins(self, line: str) -> bool:
        """Whether a line begins a step of this format, or may begin one if it is whole."""
        if self.mark not in line or (self.unless is not None and self.unless.search(line)):
            return False
        return self.needs is None or self.needs.search(line) is not None

    def number(self, line: str) -> int | None:
        """The number of the step that a line begins, its last mention; 0 of a whole run."""
        if self.whole:
            return 0
        for pattern in self.steps:
            if texts := pattern.findall(line):
                return int(texts[-1])
        return None


@cache
def formats() -> tuple[Format, ...]:
    """All formats; the first one with steps in a log counts."""
    return tuple(_format(row) for row in _table()["format"])


@cache
def beside() -> tuple[tuple[str, Values], ...]:
    """What stands in lines of its own: a mark of such lines, and their quantities."""
    return tuple((row["mark"], _values(row["values"])) for row in _table()["beside"])


@cache
def marks() -> tuple[str, ...]:
    """Texts of which one stands in each line that says something of a step or of memory."""
    several = ("throughput/", "hroughput/", "emory/peak_", "gpu_memory/", "System/Peak GPU")
    own = [each.mark for each in formats()] + [mark for mark, _ in beside()]
    return tuple(dict.fromkeys((*own, *several)))


def _format(row: Mapping[str, Any]) -> Format:
    known = {"name", "mark", "several_lines", "alone", "whole", "clock", "counts", "said"}
    return Format(
        steps=tuple(map(re.compile, row["step"])),
        values=_values(row["values"]),
        unless=re.compile(row["unless"]) if "unless" in row else None,
        needs=re.compile(row["needs"]) if "needs" in row else None,
        **{key: value for key, value in row.items() if key in known},
    )


def _values(row: Mapping[str, str]) -> Values:
    return Values(tuple(_patterns(row)))


def _patterns(row: Mapping[str, str]) -> Iterator[tuple[str, float, re.Pattern[str]]]:
    for key, text in row.items():
        pattern = text.replace("<n>", NUMBER).replace("<h>", ROUNDED)
        yield *VALUE_UNITS[key], re.compile(pattern)


def _number(text: str) -> float | None:
    """A number with commas between thousands, or a suffix, or hours, minutes and seconds.

    >>> _number("13,893.5"), _number("9.43K"), _number("1:02:03")
    (13893.5, 9430.0, 3723.0)
    """
    if ":" in text:
        seconds = 0.0
        for part in text.split(":"):
            seconds = 60 * seconds + float(part or 0)
        return seconds
    unit = SUFFIXES.get(text[-1:], 1.0)
    digits = (text if unit == 1.0 else text[:-1]).replace(",", "")
    return float(digits) * unit if digits else None


def _table() -> dict[str, Any]:
    return shipped_toml("validation", "jobs/log_formats.toml")
