"""What the answer's error may come from: how sure each number of the machine is, times its weight.

A number p with the relative error u(p) changes the step t by the share |d ln t / d ln p| * u(p), to
first order. The total is the root of the sum of squares, as for errors that are independent of one
another. Source: JCGM 100:2008 (Guide to the Expression of Uncertainty in Measurement), section 5.1,
whose combined standard uncertainty this is.

What a number's confidence means stands in ERRORS alone. Efficiencies of which several of the
shipped machines have values of their own spread by 0.17 among them, latencies and launches by 0.84
(the median over numbers of the standard deviation of ln p). So what is taken from one machine for
another is off by the square root of two times that, some 0.21 and 1.2: this is "low", an estimate
or a number taken from elsewhere. "medium", measured on something alike or worked out, is half of
it. "high", measured there or stated by its vendor, is 5 and 10 per cent, by which repeated
measurements and the devices of a fleet differ; that is judgement. No confidence counts as "low".

Not in it: counts of links, which are right or wrong; what the model itself leaves out, which the
range of a step has; numbers that err together, as those of one benchmark may.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from simulator.explain.sensitivity import Elasticity
from topologies.machine import Machine
from topologies.records import record

# By confidence: the relative error of rates and shares, and of durations.
ERRORS = {"high": (0.05, 0.1), "medium": (0.12, 0.6), "low": (0.21, 1.2)}
UNSTATED = "low"


@record
class BudgetItem:
    """A number of the machine: by which share of itself it may be off, as its `confidence` says,
    and by which `share` the step then changes."""

    key: str
    text: str
    confidence: str
    source: str
    error: float
    share: float

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "key": self.key,
            "value": self.text,
            "confidence": self.confidence or None,
            "source": self.source,
            "relative_error": self.error,
            "share_of_step": self.share,
        }


@record
class ErrorBudget:
    """The numbers that a step depends on, those by which it may change most first."""

    items: tuple[BudgetItem, ...]

    @property
    def total(self) -> float:
        """The share by which the step may change, of independent errors."""
        return math.hypot(*(item.share for item in self.items))

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        levels = {
            level: {"rates_and_shares": rate, "durations": duration}
            for level, (rate, duration) in ERRORS.items()
        }
        items = [item.as_dict() for item in self.items]
        return {"total": self.total, "confidence_levels": levels, "items": items}


def error_budget(machine: Machine, elasticities: Iterable[Elasticity]) -> ErrorBudget:
    """The budget of a step with these sensitivities to numbers of a machine."""
    facts = {fact.key: fact for fact in machine.entries}
    items = []
    for each in elasticities:
        p = each.parameter
        if p.counted or p.name not in facts:
            continue
        fact = facts[p.name]
        error = ERRORS[fact.confidence or UNSTATED][p.unit == "s"]
        share = abs(each.value) * error
        items.append(BudgetItem(p.name, p.text, fact.confidence, fact.source, error, share))
    return ErrorBudget(tuple(sorted(items, key=lambda item: (-item.share, item.key))))
