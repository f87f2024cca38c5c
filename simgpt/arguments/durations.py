"""Durations of runs: `90s`, `30min`, `12h`, `2d`."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from topologies.files.printable import shown

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
LONGEST_S = 1e12  # some thirty thousand years
_TEXT = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*(s|min|h|d)\s*")


class Duration(click.ParamType[float]):
    """A duration with its unit, in seconds; `zero` allows none."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = seconds_of(str(value))
        if seconds is None or (seconds == 0 and not self._zero):
            self.fail(
                f"{shown(value)} is not a duration; write it like 90s, 30min, 12h or 2d", param, ctx
            )
        return seconds


def seconds_of(text: str) -> float | None:
    """The seconds of a duration; None if the text is none.

    >>> seconds_of("12h"), seconds_of("1.5 min"), seconds_of("90")
    (43200.0, 90.0, None)
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    seconds = float(found[1]) * UNITS[found[2]]
    return seconds if math.isfinite(seconds) and seconds <= LONGEST_S else None


def duration_text(seconds: float) -> str:
    """A duration in the unit that suits it, with three digits that count.

    >>> duration_text(0.5), duration_text(90), duration_text(7200), duration_text(4.7e6)
    ('0.500 s', '90.0 s', '2.00 h', '54.4 d')
    """
    for unit, least in (("d", 2 * 86_400.0), ("h", 7200.0), ("min", 120.0)):
        if seconds >= least:
            return f"{_three(seconds / UNITS[unit])} {unit}"
    return f"{_three(seconds)} s"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")
