"""The shipped table of what files are known by."""

from __future__ import annotations

from functools import cache
from typing import Any

from topologies.files.reading import shipped_toml


@cache
def table() -> dict[str, Any]:
    """The table of frameworks that are known, and of settings that freeze weights."""
    return shipped_toml("simgpt", "frameworks/known.toml")


def rows() -> list[dict[str, Any]]:
    """The frameworks, one row each."""
    found: list[dict[str, Any]] = table()["framework"]
    return found
