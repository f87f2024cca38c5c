"""Measured tables of one machine, as `simgpt calibrate` writes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from topologies.errors import MachineError

MOST = 1e30


@dataclass(frozen=True)
class MeasuredTable:
    """Measured times: named columns, the last of them `seconds`, and one tuple per measurement."""

    columns: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        """Refuses a table without times, rows of another width, and times that are none."""
        if not self.columns or self.columns[-1] != "seconds":
            raise MachineError(f'a profile table ends in "seconds", but has {list(self.columns)}')
        for row in self.rows:
            if len(row) != len(self.columns):
                raise MachineError(
                    f"a profile row {list(row)} does not fit its columns {list(self.columns)}"
                )
            if not all(0 <= cell < MOST for cell in row) or not row[-1]:
                raise MachineError(f"a profile row {list(row)} wants numbers, and seconds above 0")


@dataclass(frozen=True)
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

    def __post_init__(self) -> None:
        """Refuses times of the host that are none."""
        for kind, seconds in self.host.items():
            if not 0 <= seconds < MOST:
                raise MachineError(f"profile.host.{kind} must be seconds of at least 0")
