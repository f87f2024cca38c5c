"""Kernels that were measured on the devices of our machines, by shape: data beside the machines."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "measured"
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Matmuls:
    """Seconds of matmuls by shape (m, n, k) on one device, and who measured them."""

    seconds: Mapping[Shape, float]
    source: str


def matmuls_of(device_name: str) -> Matmuls | None:
    """The table of a device, or nothing where none was published.

    >>> len(matmuls_of("NVIDIA A100-SXM4-40GB").seconds)
    1742
    >>> matmuls_of("processor core") is None
    True
    """
    for table in _tables():
        if all(word in device_name.lower() for word in table["words"]):
            return _read(table["file"], table["source"])
    return None


@cache
def _tables() -> list[dict[str, str]]:
    text = (FOLDER / "tables.toml").read_text(encoding="utf-8")
    found: list[dict[str, str]] = tomllib.loads(text)["table"]
    return found


@cache
def _read(file: str, source: str) -> Matmuls:
    with (FOLDER / file).open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    seconds = {(int(r["m"]), int(r["n"]), int(r["k"])): float(r["seconds"]) for r in rows}
    return Matmuls(seconds, source)
