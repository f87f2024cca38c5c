"""Published steps, to stand beside predictions of the same model, machine, devices and batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from simulator.costs.analytic import peak_flops_per_s
from topologies.machine_files import load_machine
from topologies.records import record
from topologies.session import session_cached
from validation.seeds.candidates import published_hfus, seed_runs
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan_text import parse_plan

SOURCE = "AxoNN, SC24"  # Singh et al., arXiv 2502.08145; see validation/data/seeds.toml


@record
class PublishedStep:
    """A measured step: how long it took, and the share of the peak that it was published as,
    recomputation counted."""

    source: str
    step_s: float
    hfu: float

    def error_of(self, step_s: float) -> float:
        """Relative error of a predicted step."""
        return step_s / self.step_s - 1

    def beside(self, step_s: float) -> dict[str, Any]:
        """It and the error of a predicted step, as they stand in JSON."""
        return asdict(self) | {"error": self.error_of(step_s)}


def published_step(model: str, machine: str, devices: int, batch: int) -> PublishedStep | None:
    """The published step of a question, if there is one; `machine` with or without its variant."""
    for run in _runs():
        asked = run["model"], run["devices"], run["batch"]
        names = run["machine"], _full_name(run["machine"])
        if asked == (model, devices, batch) and machine in names:
            return PublishedStep(SOURCE, _step_s(run["id"]), run["hfu"])
    return None


def published_point(point: Mapping[str, Any], batch: int) -> PublishedStep | None:
    """The published step of a point of a study, if there is one; none where the point changes the
    model or the machine."""
    if any(key.startswith(("model.", "machine.")) for key in point) or "devices" not in point:
        return None
    return published_step(point["model"], point["machine"], point["devices"], batch)


@cache
def _runs() -> tuple[dict[str, Any], ...]:
    """The runs of AxoNN's paper with a published share of the peak."""
    shares, runs = published_hfus(), seed_runs()
    return tuple(
        {**vars(runs[name]), "hfu": hfu}
        for name, hfu in shares.items()
        if runs[name].stack == "axonn"
    )


@session_cached(64)
def _full_name(machine: str) -> str:
    return load_machine(machine).full_name


@session_cached(64)
def _step_s(name: str) -> float:
    """t = hardware FLOPs / (devices * peak * HFU): papers publish the share, all layers recomputed.

    The grid is not published, and changes no FLOPs: here it is data parallelism alone.
    """
    run = next(run for run in _runs() if run["id"] == name)
    plan = parse_plan("dp=1,mbs=1,recompute=full", batch=1)
    flops = lower(find_model(run["model"]), plan).hardware_flops * run["batch"]
    peak = peak_flops_per_s(load_machine(run["machine"]), plan.training.precision)
    return float(flops / (run["devices"] * peak * run["hfu"]))
