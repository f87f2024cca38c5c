"""The host validation: a fixed set of small steps, predicted from calibration and then run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from simulator.predict import predict
from topologies.machine import Machine
from topologies.records import record
from workload.gpt import find_model
from workload.plan import Plan
from workload.plan_text import parse_plan

# Model, batch and plan of each step that is validated: on one, two and, where the machine has them,
# four ranks, every axis, with and without overlap, recomputation, micro-batches and sharding, with
# experts and parts of sequences.
CELLS = (
    ("tiny-1m", 8, "dp=1"),
    ("tiny-2m", 8, "dp=1,recompute=full"),
    ("tiny-10m", 4, "dp=1,mbs=2"),
    ("tiny-25m", 2, "dp=1"),
    ("tiny-2m", 16, "dp=2,overlap=none"),
    ("tiny-10m", 8, "dp=2"),
    ("tiny-10m", 8, "tp=2,overlap=none"),
    ("tiny-25m", 4, "tp=2,recompute=full"),
    ("tiny-10m", 8, "y=2"),
    ("tiny-25m", 4, "y=2,overlap=none"),
    ("tiny-10m", 8, "z=2,overlap=none,recompute=full"),
    ("tiny-25m", 4, "z=2"),
    ("tiny-10m", 8, "dp=2,zero=1"),
    ("tiny-10m", 8, "dp=2,zero=2,overlap=none"),
    ("tiny-25m", 4, "dp=2,zero=3"),
    ("tiny-10m", 8, "pp=2,mbs=2"),
    ("tiny-10m", 8, "pp=2,mbs=2,schedule=gpipe,overlap=none"),
    ("tiny-25m", 4, "pp=2,mbs=1,schedule=zb-h1"),
    ("tiny-10m", 8, "x=2,z=2"),
    ("tiny-25m", 4, "y=2,z=2,overlap=none"),
    ("tiny-10m", 16, "tp=2,dp=2,zero=1"),
    ("tiny-25m", 8, "z=2,dp=2,recompute=full"),
    ("tiny-10m", 16, "dp=2,pp=2,mbs=2"),
    ("tiny-mixtral-2m", 16, "dp=2,ep=2"),
    ("tiny-deepseek-2m", 16, "dp=2,ep=2,zero=1"),
    ("tiny-10m", 8, "cp=2"),
    ("tiny-10m", 8, "cp=2,context_kind=all_gather"),
    ("tiny-10m", 8, "cp=2,context_kind=ulysses"),
    ("tiny-deepseek-2m", 16, "dp=4,ep=4"),
    ("tiny-mixtral-2m", 16, "cp=2,dp=2,ep=2"),
)
STEPS = 12


@record
class HostRow:
    """One validated step; `error` is predicted over measured, less one.

    `program_bytes` is the peak of memory that the program says, of the rank with most;
    `allocated_bytes` what torch's allocator held at most there; `routed_bytes` the program's peak
    for the rows that came to the experts of that rank, where their number is not the plan's, and
    `rows_over_mean` the mean over layers of the most rows of a rank, over their mean.
    """

    model: str
    plan: Plan
    predicted_s: float
    measured_s: float
    program_bytes: int
    allocated_bytes: int
    routed_bytes: int | None = None
    rows_over_mean: float | None = None

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1

    def as_dict(self) -> dict[str, Any]:
        """The row as it stands in JSON."""
        return {
            "model": self.model,
            "ranks": self.plan.grid.ranks,
            "batch": self.plan.batch,
            "plan_string": str(self.plan),
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "error": self.error,
            "program_bytes": self.program_bytes,
            "allocated_bytes": self.allocated_bytes,
            "routed_bytes": self.routed_bytes,
            "rows_over_mean": self.rows_over_mean,
        }


def too_wide(machine: Machine) -> int:
    """How many of the steps want more ranks than the machine has; they are left out."""
    return sum(_plan(text, batch).grid.ranks > machine.devices for _, batch, text in CELLS)


def most_ranks(machine: Machine) -> int:
    """The ranks of the widest step that the machine has devices for."""
    plans = (_plan(text, batch) for _, batch, text in CELLS)
    return max(plan.grid.ranks for plan in plans if plan.grid.ranks <= machine.devices)


def _plan(text: str, batch: int) -> Plan:
    return parse_plan(f"{text},precision=fp32", batch=batch)


def validate_host(
    machine: Machine,
    *,
    device: str,
    threads: int,
    timeout_s: float,
    progress: Callable[[str], None],
) -> Iterator[HostRow]:
    """Predict every cell that the machine has ranks for, then run it on `device`, and compare.

    Every prediction is made from the calibrated machine before its step is run.
    """
    from executor.launching.launch import launch_training
    from executor.launching.task_specs import Job

    for name, batch, text in CELLS:
        plan = _plan(text, batch)
        if plan.grid.ranks > machine.devices:
            continue
        gpt = find_model(name)
        predicted = predict(gpt, plan, machine)
        progress(f"running {name} with {plan}")
        job = Job(
            gpt=gpt, plan=plan, steps=STEPS, threads=threads, timeout_s=timeout_s, device=device
        )
        result = launch_training(job)
        found = [result[key] for key in ("peak_bytes", "routed_peak_bytes", "rows_over_mean")]
        seconds = predicted.step_s, result["step_s"]
        yield HostRow(name, plan, *seconds, predicted.memory.peak_bytes, *found)


def mape(errors: list[float]) -> float:
    """Mean absolute relative error."""
    return sum(map(abs, errors)) / len(errors)
