"""What a golden run's notes say: its further arguments, and when and in which image it ran."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

Cells = Mapping[str, str]
_RECORDED = re.compile(r"\[golden first recorded (\d{4}-\d{2}-\d{2}) ")


def argument(cells: Cells, name: str) -> str | None:
    """The value of an argument that has no column, if it is given.

    >>> argument({"notes": "[env:lts] a=1;mtp-num-layers=2;"}, "mtp-num-layers")
    '2'
    """
    found = re.search(rf"(?:^|[ ;]){re.escape(name)}=([^;]*)", cells["notes"])
    return found[1].strip() if found else None


def number(cells: Cells, name: str) -> int | None:
    """The whole number that an argument has, if it has one."""
    text = argument(cells, name)
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,6}", text) else None


def is_set(cells: Cells, name: str) -> bool:
    """Whether a switch is on."""
    return argument(cells, name) == "True"


def layout(cells: Cells) -> str | None:
    """The layout of the pipeline as Megatron-LM writes it, if there is one."""
    found = re.search(r"\[pipeline-layout:([^\]]+)\]", cells["notes"])
    return found[1] if found else None


def is_long_term(cells: Cells) -> bool:
    """Whether it ran in the image with long-term support."""
    return "[env:lts]" in cells["notes"]


def recorded(cells: Cells) -> date | None:
    """The day on which its golden values were first recorded, if known."""
    found = _RECORDED.search(cells["notes"])
    return date.fromisoformat(found[1]) if found else None
