"""Steps that are known already: a step is what its program, rank classes and prices make of it.

A machine with another number on which no price depends has the same step: its ops are priced anew,
and the step is simulated again only where a price differs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from simulator.engine.columns import Sorts
from simulator.engine.engines import engine_name
from simulator.engine.simulate import Prices
from simulator.ranks.classes import Asked
from simulator.result import StepResult
from topologies.session import current_session

MOST = 256  # steps that a session knows; some kilobytes each


class KnownStep(NamedTuple):
    """A step, or None where that much of it did not do; and the ticks of all collectives that were
    asked for beside others in flight."""

    step: StepResult | None
    crowded: Mapping[Asked, Sequence[int]]


class KnownSteps:
    """Steps by their programs and the prices of their ops, the latest last."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, KnownStep] = {}

    def step(
        self,
        program: Hashable,
        prices: Prices,
        sorts: Sequence[Sorts],
        simulated: Callable[[], StepResult | None],
    ) -> StepResult | None:
        """The step of a program whose ops are of these sorts, simulated where it is not known."""
        network = prices.network
        how = engine_name(), network.alike, network.fabric.compute_share
        key = program, how, *(prices.of(each).digest for each in sorts)
        known = self._steps.pop(key, None)
        if known is None or any(network.ticks_of(a) != t for a, t in known.crowded.items()):
            step = simulated()
            asked = network.known.items()
            known = KnownStep(step, {each: ticks for each, ticks in asked if each.in_flight})
        self._steps[key] = known
        if len(self._steps) > MOST:
            del self._steps[next(iter(self._steps))]
        return known.step


def known_step(
    program: Hashable,
    prices: Prices,
    sorts: Sequence[Sorts],
    simulated: Callable[[], StepResult | None],
) -> StepResult | None:
    """The step of a program with ops of these sorts, simulated where the session does not know
    it."""
    return current_session().the(KnownSteps).step(program, prices, sorts, simulated)
