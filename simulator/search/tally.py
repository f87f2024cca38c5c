"""What a search has counted so far."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.search.root_nodes import NEVER


@dataclass
class Tally:
    """Counts: shapes that were bounded, plans of these that may fit, plans that cannot be predicted
    (one of them for `reason`), and the least memory that a plan needs which does not fit."""

    shapes: int = 0
    fitting: int = 0
    unpredicted: int = 0
    reason: str = ""
    least_bytes: int = NEVER

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.shapes + other.shapes,
            self.fitting + other.fitting,
            self.unpredicted + other.unpredicted,
            _first(self.reason, other.reason),
            min(self.least_bytes, other.least_bytes),
        )

    def refuse(self, plans: int, reason: str) -> None:
        """Count plans that cannot be predicted."""
        self.unpredicted += plans
        self.reason = _first(self.reason, reason)

    def needs(self, least_bytes: int) -> None:
        """Note what a plan needs that does not fit."""
        self.least_bytes = min(self.least_bytes, least_bytes)


def _first(*reasons: str) -> str:
    """The alphabetically first reason, whichever process found it."""
    return min(filter(None, reasons), default="")
