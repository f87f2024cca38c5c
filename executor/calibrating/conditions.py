"""Under which conditions a machine was measured: when, beside what load, how well repeats agreed.

A load is that of getloadavg(3): how many processes ran or wanted to run, as a mean over a minute.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from typing import Any

from topologies.records import record

BUSY = 0.75  # processes for each core, from which on ranks wait for others to leave a core
# Measured on 2 cores: repeats of a kernel differed by 9 % with one rank beside a load of 1.7, and
# by 24 to 36 % with two ranks beside a load of 3 to 4, where others take turns with them.
DISTURBED = 0.15
UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"))


@record
class Conditions:
    """When a calibration was made, the host's load as it began, the host's cores, and by how much
    the slowest repeat of a kernel was above the fastest (`spread`, a share; the median of all)."""

    at: datetime.datetime
    load: float
    cores: int
    spread: float = 0.0

    @staticmethod
    def now(spread: float = 0.0) -> Conditions:
        """Note the conditions of this moment."""
        when = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        return Conditions(when, os.getloadavg()[0], os.cpu_count() or 1, spread)

    @staticmethod
    def of(document: Any) -> Conditions | None:
        """Read the conditions that a machine's document keeps; None where it has none."""
        profile = document.get("profile") if isinstance(document, Mapping) else None
        kept = profile.get("provenance") if isinstance(profile, Mapping) else None
        if not isinstance(kept, Mapping):
            return None
        try:
            return Conditions(
                at=datetime.datetime.fromisoformat(kept["at"]),
                load=float(kept["load"]),
                cores=int(kept["cores"]),
                spread=float(kept["spread"]),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def as_provenance(self) -> dict[str, str]:
        """The texts that a machine's document keeps of them."""
        return {
            "at": self.at.isoformat(),
            "load": f"{self.load:.2f}",
            "cores": str(self.cores),
            "spread": f"{self.spread:.4f}",
        }

    @property
    def is_busy(self) -> bool:
        """Whether other processes took cores from what was measured, by the host's load."""
        return self.load > BUSY * self.cores

    @property
    def is_disturbed(self) -> bool:
        """Whether repeats of the same kernel disagreed."""
        return self.spread > DISTURBED

    @property
    def load_words(self) -> str:
        """The load as a person reads it: `load 0.4 on 2 cores`."""
        return f"load {self.load:.1f} on {self.cores} core{'s' * (self.cores != 1)}"

    def words(self, now: datetime.datetime) -> str:
        """Age, load and what is wrong with a calibration, in one line."""
        line = f"calibration made {_age((now - self.at).total_seconds())} ago at {self.load_words}"
        if self.is_disturbed:
            return f"{line}, while its repeats differed by {self.spread:.0%}: not to be relied on"
        return f"{line}, a busy machine" if self.is_busy else line


def _age(seconds: float) -> str:
    """A length of time in its largest unit: `3 hours`.

    >>> _age(59), _age(60), _age(7300), _age(200_000)
    ('less than a minute', '1 minute', '2 hours', '2 days')
    """
    for size, unit in UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' * (count != 1)}"
    return "less than a minute"
