"""Weak scaling over AxoNN's ladder of models: our curve for each machine, with published points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.predict import Prediction, predict
from topologies.files.reading import shipped_toml
from topologies.machine_files import load_machine
from topologies.placement import scheduler
from workload.gpt import find_model
from workload.plan_text import parse_plan

BATCH = 8192
COMMON = "recompute=full,overlap=oar+ors+oag"


@dataclass(frozen=True)
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


def weak_scaling(progress: Callable[[str], None] = lambda _: None) -> dict[str, list[Rung]]:
    """The ladder of each machine, predicted."""
    published = {(run["machine"], run["devices"]): run["hfu"] for run in _data("axonn")["run"]}
    ladders: dict[str, list[Rung]] = {}
    for machine, rungs in _data("axonn_ladder").items():
        for devices, rung in rungs.items():
            progress(f"{rung['model']} on {devices} of {machine}")
            hfu = published.get((machine, int(devices)))
            found = Rung(_predicted(machine, int(devices), rung), hfu)
            ladders.setdefault(machine, []).append(found)
    return ladders


def _predicted(machine: str, devices: int, rung: dict[str, Any]) -> Prediction:
    plan = parse_plan(f"{rung['plan']},{COMMON}", devices=devices, batch=rung.get("batch", BATCH))
    built = load_machine(machine)
    placement = scheduler(built, plan.grid.ranks)
    return predict(find_model(rung["model"]), plan, built, placement=placement)


def _data(name: str) -> dict[str, Any]:
    return shipped_toml("validation", f"data/{name}.toml")
