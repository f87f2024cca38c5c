"""How far a search is, which is its answer too, whenever it ends."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.predict import Prediction


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is: no plan at all has a lower value than `bound`, in seconds or joules as
    the objective asks, or nothing is known of that if it is 0; `best` is the lowest found.

    `considered` plans are legal, `fitting` of them have room as far as the bound on memory tells,
    and `simulated` were. `found` has the fastest of these that fit; if it is optimal, no other plan
    is faster than any of them. A share `bounded` of the space was looked at. All plans that have no
    room need at least `least_bytes` (0: there is none). `unpredicted` plans that may fit came up
    and could not be predicted, one of them for that `reason`; all else that is said is said of the
    others.
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

    @property
    def gap(self) -> float:
        """By what share of its value the best plan found may miss the best there is."""
        if self.is_optimal or not self.found:
            return 0.0 if self.is_optimal else 1.0
        return max(1 - self.bound / self.best, 0.0)
