"""What executing a step on every rank found, for some samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from simulator.noise.clocks import Waited
from simulator.noise.noise import Draw
from simulator.noise.stage_ranks import Clocks
from topologies.records import record

OWN, END = "own ops", "end"
CAUSES = {
    "pp": "waiting for other stages",
    OWN: "the rank's own compute",
    END: "between its end and the step's",
}


@record(slots=False)
class Played:
    """The time of each sample's step in ticks, (samples,), and what it is made of on the mean rank.

    `parts` sums to `ticks`: "own ops" has all ops of the compute stream, once they have begun; axes
    (`z+dp`) the time in which it waits at their collectives, for the other members of a group or
    for another stream; `pipe` that in which it waits for other stages; "end" the time from its end
    to the step's.
    """

    ticks: Clocks
    parts: dict[str, Clocks]

    @classmethod
    def of(cls, ticks: Clocks, ends: Sequence[Clocks], waited: Waited) -> Played:
        """From the ends of all stages' compute streams."""
        ranks = sum(end.shape[1] for end in ends)
        mean = np.sum([end.sum(axis=1) for end in ends], axis=0) / ranks
        parts = {key: sums / ranks + np.zeros_like(ticks) for key, sums in waited.ticks.items()}
        own = mean - sum(parts.values(), np.zeros_like(ticks))
        return cls(ticks, {OWN: own, **parts, END: ticks - mean})


def cause_of(part: str) -> str:
    """A part of the excess in words."""
    return CAUSES.get(part, f"waiting at collectives of {part}")


class AllRanks(Protocol):
    """A step as all ranks execute it, of one stage or of several."""

    @property
    def ops(self) -> int:
        """The ops that each rank executes, or where stages differ, all stages' mean."""
        ...

    @property
    def devices(self) -> Sequence[int]:
        """One rank of each class."""
        ...

    def play(self, draw: Draw) -> Played:
        """Execute the step for some samples."""
        ...
