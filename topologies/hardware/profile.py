"""Measured tables of one machine, as `simgpt calibrate` writes them."""

from __future__ import annotations

from dataclasses import field

from topologies.records import record


@record(slots=False)
class MeasuredTable:
    """Measured times: named columns, the last of them `seconds`, and one tuple per measurement."""

    columns: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]


@record(slots=False)
class Profile:
    """Kernel and collective times by op kind, and where they come from, in free words.

    `host` has, by op kind and precision as `kernels` has its tables, the seconds that the host
    takes to issue one: a GPU's kernels have the device's time alone. Empty where times of kernels
    have the host's in them, as on a CPU.
    """

    kernels: dict[str, MeasuredTable] = field(default_factory=dict, hash=False)
    collectives: dict[str, MeasuredTable] = field(default_factory=dict, hash=False)
    provenance: dict[str, str] = field(default_factory=dict, hash=False)
    host: dict[str, float] = field(default_factory=dict, hash=False)
