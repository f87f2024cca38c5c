"""What became of a row: its measured and predicted step, or the reason why there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from simulator.uncertainty.anchors import Place
from topologies.records import record
from validation.published.runs import PublishedRun

PREDICTED, NO_MEASUREMENT = "predicted", "no measurement"
BEST_PLAN = "best plan"  # predicted too, with the best plan found: the row's own is unknown
SEED = 1  # of the tenth of the rows that is held out


@record
class Ideal:
    """A row's step at the peak of all its devices, its pipeline's bubble included, and the family
    of GPUs and dtype that share a utilisation."""

    family: str
    step_s: float


@record
class Outcome:
    """A row with what we predict for it; `unscored` says why its error counts nowhere.

    Eight of ten steps should take from `low_s` to `high_s`; `breakdown_s` is the prediction's,
    `formula_s` what the formula that a simulator has to beat says, `ideal` what its utilisation is
    a share of, `calibrated_s` the prediction times the factor of the row's stack. `error_part` is
    the part that the error most likely sits in, `off_s` by how many seconds each part is likely too
    long; error_attribution.py has the rule. `fits` is whether the plan fits into a device,
    `fits_as_read` whether it did before what was changed because it ran, and `peak_bytes` the
    plan's peak there. `place` says how near it is to other rows.
    """

    run: PublishedRun
    status: str
    reason: str = ""
    plan: str = ""
    stack: str = ""
    measured_s: float | None = None
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    ideal: Ideal | None = None
    formula_s: float | None = None
    calibrated_s: float | None = None
    unscored: str = ""
    fits: bool = True
    fits_as_read: bool = True
    peak_bytes: int | None = None
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    error_part: str = ""
    error_known_by: str = ""
    off_s: Mapping[str, float] = field(default_factory=dict)
    place: Place | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return relative(self.predicted_s, self.measured_s)

    @property
    def scored(self) -> bool:
        """Whether its error counts."""
        return self.error is not None and not self.unscored

    @property
    def held_out(self) -> bool:
        """Whether it is of the tenth that nobody looks at while developing."""
        return held_out(self.run.id)

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in JSON, with the columns of its file."""
        return {
            "id": self.run.id,
            "source": self.run.source,
            "measured_step_s": self.measured_s,
            "predicted_step_s": self.predicted_s,
            "low_step_s": self.low_s,
            "high_step_s": self.high_s,
            "error": self.error,
            "status": self.status,
            "reason": self.reason,
            "scored": self.scored,
            "unscored": self.unscored,
            "held_out": self.held_out,
            "formula_step_s": self.formula_s,
            "formula_error": relative(self.formula_s, self.measured_s),
            "calibrated_step_s": self.calibrated_s,
            "calibrated_error": relative(self.calibrated_s, self.measured_s),
            "stack": self.stack,
            "plan_string": self.plan,
            "fits": self.fits,
            "breakdown_s": dict(self.breakdown_s),
            "error_part": self.error_part,
            "error_known_by": self.error_known_by,
            "off_s": dict(self.off_s),
            "columns": dict(self.run.columns),
        }


def relative(predicted: float | None, measured: float | None) -> float | None:
    """The relative error, where both are known."""
    return None if predicted is None or measured is None else predicted / measured - 1


def held_out(name: str) -> bool:
    """Whether a row of that id is held out: a tenth of all ids, the same in every file.

    >>> sum(held_out(f"row-{number}") for number in range(1000))
    88
    """
    digest = hashlib.sha256(f"{SEED}:{name}".encode()).hexdigest()
    return int(digest, 16) % 10 == 0
