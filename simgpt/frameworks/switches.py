"""Switches that are off, and the settings that mean nothing then: `belonging` in the tables of
frameworks (simgpt/frameworks/reading.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

OFF = ("", "false", "0", "none", "null", "0.0", "auto", "no", "off")
NOT_ON = (*OFF, "[]")
ENABLED = ("enabled", "enable")  # switches of the section in which they stand


def switched_off(groups: Iterable[Mapping[str, Any]], settings: Mapping[str, str]) -> list[str]:
    """The settings that belong to a switch that is off, wherever both stand.

    >>> groups = [{"of": ["fp8"], "names": ["fp8_*"]}]
    >>> switched_off(groups, {"model.fp8_hybrid": "true", "model.fp8": "false", "seed": "1"})
    ['model.fp8_hybrid']
    """
    left = {name: value.lower() for name, value in settings.items()}
    parted = [name.rpartition(".") for name, value in left.items() if value in NOT_ON]
    off = {section for section, _, leaf in parted if section and leaf in ENABLED}
    left = {name: value for name, value in left.items() if not _is_within(name, off)}
    for group in groups:
        if not _is_on(group, left):
            _leave_out(left, group)
    return [name for name in settings if name not in left]


def _is_within(name: str, sections: Collection[str]) -> bool:
    """Whether a name stands in one of the sections, and is no switch of a section itself."""
    *above, leaf = name.split(".")
    return leaf not in ENABLED and any(each in sections for each in accumulate(above, _dotted))


def _dotted(section: str, name: str) -> str:
    return f"{section}.{name}"


def _is_on(group: Mapping[str, Any], settings: Mapping[str, str]) -> bool:
    """Whether one of a group's switches is on; one whose value is a variable's may be."""
    values = [value for name, value in settings.items() if _is_switch(name, group)]
    if not values:
        return bool(group.get("unsaid_is_on", False))
    off = (*NOT_ON, "1") if group.get("above_one") else NOT_ON
    words = group.get("on", ())
    return any(
        value.startswith("$") or (value in words if words else value not in off) for value in values
    )


def _leave_out(settings: dict[str, str], group: Mapping[str, Any]) -> None:
    """Take out what a group has: names, or the sections in which they stand."""
    for name in [name for name in settings if not _is_switch(name, group)]:
        parts = (name, *name.split("."))
        if any(fnmatchcase(part, pattern) for pattern in group["names"] for part in parts):
            del settings[name]


def _is_switch(name: str, group: Mapping[str, Any]) -> bool:
    return any(f".{name}".endswith(f".{switch}") for switch in group["of"])
