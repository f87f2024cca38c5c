"""How a stack's own log counts the FLOP/s that it prints, so that an answer can be held against it.

Each stack's file names its source under `[log]`: what `flops` says is one of the keys here.
"""

from __future__ import annotations

from typing import Protocol

from simulator.stacks.stack import Stack
from topologies.records import record

CAUSAL, FULL, HARDWARE = "causal", "full", "hardware"
COUNTS = (CAUSAL, FULL, HARDWARE)


class Utilisation(Protocol):
    """What a log counts of a step: shares of the peak by what of it counts."""

    @property
    def stack(self) -> Stack:
        """The stack whose log it is."""
        ...

    @property
    def mfu(self) -> float:
        """With all of attention."""
        ...

    @property
    def mfu_causal(self) -> float:
        """With the unmasked half of attention."""
        ...

    @property
    def hfu(self) -> float:
        """With recomputation as well."""
        ...

    @property
    def peak_flops_per_s(self) -> float:
        """The peak of a device."""
        ...


@record
class Logged:
    """What a log would print of a step: the share of the peak, the FLOP/s of a device, and what
    counts, one of `COUNTS`."""

    share: float
    flops_per_s: float
    counts: str


def logged(prediction: Utilisation) -> Logged | None:
    """The utilisation of a prediction as its stack's log counts it; None where the stack's file
    does not say how. `causal` counts the unmasked half of attention, `full` all of it, and
    `hardware` recomputation as well."""
    counts = prediction.stack.log.get("flops")
    if counts is None:
        return None
    shares = {CAUSAL: prediction.mfu_causal, FULL: prediction.mfu, HARDWARE: prediction.hfu}
    share = shares[counts]
    return Logged(share, share * prediction.peak_flops_per_s, counts)
