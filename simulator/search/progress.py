"""How far a search is, which is its answer too, whenever it ends; and what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.predict import Prediction
from simulator.search.root_nodes import NEVER
from topologies.records import record


@record
class Progress:
    """How far a search is: no plan of the core space has a lower value than `bound`, in seconds or
    joules as the objective asks, or nothing is known of that if it is 0; `best` is the lowest
    found, in that space or around it, and `bound` is never above it.

    Of the core space `considered` plans are legal, `fitting` of them have room as far as bounds on
    memory tell; if the answer `is_optimal`, none of them is faster than the first of `found`, which
    are the best of all that were simulated and fit. A share `bounded` of the space was looked at.
    All plans that have no room need at least `least_bytes` (0: there is none). `unpredicted` plans
    that may fit came up and could not be predicted, one of them for that `reason`; all else that is
    said is said of the others. Of all plans `simulated`, those `around` were simulated on walks.
    `unproved` says why no bounds are known ("" where they are), and `families` has the best plan of
    each family, the best of all first.
    """

    considered: int
    fitting: int
    simulated: int
    bound: float
    best: float
    found: tuple[Prediction, ...]
    is_optimal: bool
    unpredicted: int = 0
    reason: str = ""
    bounded: float = 1.0
    least_bytes: int = 0
    around: int = 0
    unproved: str = ""
    families: Mapping[str, Prediction] = field(default_factory=dict)

    @property
    def may_fit(self) -> int:
        """How many plans may fit by all that is known: of a search that came to its end without
        one, those alone that it could not predict."""
        return self.unpredicted if self.is_optimal and not self.found else self.fitting

    @property
    def gap(self) -> float:
        """By what share of its value the best plan found may miss the best there is."""
        if self.is_optimal or not self.found:
            return 0.0 if self.is_optimal else 1.0
        return max(1 - self.bound / self.best, 0.0)


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
