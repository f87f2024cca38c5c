"""What reading one file may take: work that is counted before it is done.

A file of a few kilobytes can ask for any amount of text, lists or events. Who reads it charges what
it is about to make, so that both its time and its memory are bounded by `most`, whatever kind of
expansion it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from topologies.errors import SimgptError


@dataclass(slots=True)
class Budget:
    """So many `units` at most, of what `noun` names; more is the error in one sentence."""

    noun: str
    units: str
    most: int
    error: type[SimgptError]
    spent: int = 0

    def charge(self, count: int) -> None:
        """Take in that so many are about to be made."""
        self.spent += count
        if self.spent > self.most:
            raise self.error(f"{self.noun} takes more than {self.most:,} {self.units}")
