"""AxoNN's grid, as the axes of a plan, and those as the words of `axonn.init`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from simgpt.frameworks.reading import Reading


def read(reading: Reading, devices: int | None) -> None:
    """Read the grid, which says how many devices there are."""
    reading.read_simple()
    if devices is None:
        reading.fields["devices"] = prod(reading.fields.values())


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing beyond the grid."""
    return {}
