"""What decides how long a training run takes beside its steps, and what its attempts go through.

A run is a sequence of attempts. An attempt restarts (processes, communicators, the checkpoint
read), then trains: after every `interval_s` of training a save begins, which stalls training for
`stall_s` and is durable `write_s` after it began. A failure throws training back to the newest
durable save; it is noticed `detection_s` later. Then a spare node takes the place of the broken one
(`SparePool`) or, under a scheduler's time limit, the next job is waited for (`Chain`). A job saves
before its time limit; the run's end is a save as well.
"""

from __future__ import annotations

from topologies.errors import SimgptError
from topologies.records import record

DAY_S = 86_400.0
HOUR_S = 3_600.0
ROUNDING = 1e-9
SETTLED_S = 1e-6  # training below this is done: sums of floats differ by less


class GoodputError(SimgptError):
    """A run that cannot make progress, or whose inputs do not go together."""


@record
class SparePool:
    """Nodes that wait to replace a broken one, which comes back after a repair: exponential with
    the mean `repair_s`. With none left, the run waits for the first that is repaired."""

    nodes: int
    repair_s: float


@record
class Chain:
    """Jobs one after the other, of at most `walltime_s` each; the next begins after a wait in the
    queue, exponential with the mean `queue_s`. A job goes on after as many failures as it has
    `spares` in its allocation, and ends with the next."""

    walltime_s: float
    queue_s: float
    spares: int = 0


@record
class Run:
    """A training run: `work_s` of training without a break, under failures at the rate
    `failures_per_s` of all its nodes together.

    Without `pool` and `chain` a broken node is replaced at once, from the rest of the machine.
    """

    work_s: float
    interval_s: float
    write_s: float
    stall_s: float
    failures_per_s: float
    detection_s: float
    restart_s: float
    pool: SparePool | None = None
    chain: Chain | None = None

    def __post_init__(self) -> None:
        """Refuses saves that are not durable when the next begins, and jobs without training."""
        assert self.pool is None or self.chain is None, "spares of a chain are in its allocation"
        if self.stall_s > self.write_s:
            raise GoodputError(
                f"a save stalls training for {self.stall_s:g} s, longer than the "
                f"{self.write_s:g} s that it takes"
            )
        if self.write_s > self.segment_s * (1 + ROUNDING):
            raise GoodputError(
                f"a save takes {self.write_s:.3g} s, and the next would begin before it is "
                f"durable; save every {self.write_s - self.stall_s:.3g} s at most"
            )
        if self.chain is not None and self.chain.walltime_s <= self.restart_s + self.write_s:
            raise GoodputError(
                f"jobs of {self.chain.walltime_s:.3g} s are over before anything is trained: a "
                f"restart and a save take {self.restart_s + self.write_s:.3g} s"
            )

    @property
    def segment_s(self) -> float:
        """From the beginning of one save to that of the next."""
        return self.interval_s + self.stall_s
