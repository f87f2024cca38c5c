"""Weak scaling over AxoNN's ladder of models: our curve for each machine, with published points.

The rungs are runs of `validation/data/seeds.toml`, predicted as `simgpt validate seeds` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.predict import Prediction
from topologies.records import record
from topologies.session import in_session
from validation.seeds.candidates import SeedRuns, published_hfus, seed_runs


@record(slots=False)
class Rung:
    """A model on some devices: our prediction, and the published share of the peak, if any."""

    prediction: Prediction
    published_hfu: float | None

    @property
    def error(self) -> float | None:
        """Relative error of the predicted step, which goes as one over HFU."""
        if self.published_hfu is None:
            return None
        return self.published_hfu / self.prediction.hfu - 1

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "machine": self.prediction.machine,
            "devices": self.prediction.devices,
            "model": self.prediction.gpt.name,
            "plan_string": str(self.prediction.plan),
            "batch": self.prediction.plan.batch,
            "step_s": self.prediction.step_s,
            "predicted_hfu": self.prediction.hfu,
            "published_hfu": self.published_hfu,
            "error": self.error,
        }


def ladders() -> dict[str, list[str]]:
    """The runs on each machine's ladder, by their ids, from the fewest devices to the most."""
    found: dict[str, list[str]] = {}
    for run in seed_runs().values():
        if run.ladder:
            found.setdefault(run.machine, []).append(run.id)
    return found


@in_session
def weak_scaling(progress: Callable[[str], None] = lambda _: None) -> dict[str, list[Rung]]:
    """The ladder of each machine, predicted."""
    published, runs = published_hfus(), SeedRuns(progress)
    return {
        machine: [Rung(runs[name].best, published.get(name)) for name in names]
        for machine, names in ladders().items()
    }
