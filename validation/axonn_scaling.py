"""AxoNN's published weak scaling beside our prediction, nothing fitted to it.

The papers give the share of peak (recomputation counted) and the model, not the grid. The rule for
the grid here is the authors' own launch script's: the smallest x*y*z that it allows for the model,
all of it on z, the rest on data; where the batch does not divide over z*data, x takes the excess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.predict import Prediction, predict
from topologies.files.reading import shipped_toml
from topologies.machine_files import load_machine
from topologies.placement import scheduler
from workload.gpt import find_model
from workload.plan_text import parse_plan


@dataclass(frozen=True, slots=True)
class Published:
    """A published run and our prediction of it; HFU is a share of the advertised peak."""

    id: str
    hfu: float
    prediction: Prediction

    @property
    def error(self) -> float:
        """Relative error of the predicted step time, which goes as one over HFU."""
        return self.hfu / self.prediction.hfu - 1

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in JSON."""
        return {
            "id": self.id,
            "model": self.prediction.gpt.name,
            "machine": self.prediction.machine,
            "devices": self.prediction.devices,
            "plan_string": str(self.prediction.plan),
            "measured_hfu": self.hfu,
            "predicted_hfu": self.prediction.hfu,
            "predicted_s": self.prediction.step_s,
            "measured_s": self.prediction.step_s * self.prediction.hfu / self.hfu,
            "error": self.error,
        }


def validate_axonn() -> list[Published]:
    """Predict every published run of the data file."""
    return [_predicted(run) for run in shipped_toml("validation", "data/axonn.toml")["run"]]


def _predicted(run: dict[str, Any]) -> Published:
    plan = parse_plan(run["plan"], devices=run["devices"], batch=run["batch"])
    machine = load_machine(run["machine"])
    placement = scheduler(machine, plan.grid.ranks)
    prediction = predict(find_model(run["model"]), plan, machine, placement=placement)
    return Published(run["id"], run["hfu"], prediction)
