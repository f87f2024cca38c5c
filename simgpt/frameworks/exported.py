"""What is written of a job in a framework's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topologies.records import record


@record
class Exported:
    """A framework's settings by name, and sentences on what they leave to something else; `stack`
    is the one that they were made for, where they are read as another."""

    framework: str
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    devices: int
    stack: str = ""
