"""Kernels that were measured on the devices of our machines, by shape: data beside the machines."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache

from topologies.files.reading import shipped_text, shipped_toml
from topologies.records import record
from topologies.session import session_cached

FOLDER = "measured"
Shape = tuple[int, int, int]


@record(slots=False)
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
    found: list[dict[str, str]] = shipped_toml("topologies", f"{FOLDER}/tables.toml")["table"]
    return found


@session_cached(64)
def _read(file: str, source: str) -> Matmuls:
    rows = list(csv.DictReader(shipped_text("topologies", f"{FOLDER}/{file}").splitlines()))
    seconds = {(int(r["m"]), int(r["n"]), int(r["k"])): float(r["seconds"]) for r in rows}
    return Matmuls(seconds, source)
