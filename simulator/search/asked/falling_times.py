"""Where more bytes may take less time to send than fewer, so that the fewest bound nothing."""

from __future__ import annotations

from topologies.hardware.software import Curve, Kind
from topologies.machine import Machine


def may_fall(machine: Machine, *kinds: Kind) -> str:
    """Why larger collectives of some kinds may take less time; "" where they do not."""
    software = machine.software
    for kind in kinds:
        if machine.profile is not None and kind in machine.profile.collectives:
            return "its measured times may fall as sizes grow"
        own = getattr(software, kind, None) or software.all_gather
        staged = (software.recursive, software.hierarchical)
        others = [getattr(each, kind, None) for each in staged if each is not None]
        if any(curve is not None and not _grows(curve) for curve in (own, *others)):
            return f"its {kind.replace('_', '-')}s of some sizes are slower than larger ones"
    return ""


def _grows(curve: Curve) -> bool:
    """Whether a larger message takes as long as a smaller one, or longer."""
    hops = curve.hop_small_s, curve.hop_large_s
    steps = curve.step_small_s, curve.step_large_s
    falls = any(large is not None and large < small for small, large in (hops, steps))
    return curve.stall is None and not falls
