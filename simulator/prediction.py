"""The prediction: how long one step takes on a machine, what limits it, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.costs import ComputeCosts, compute_costs, peak_flops_per_s
from simulator.fabric import MachineFabric
from simulator.fold import simulate_step
from simulator.kernels import PLAIN, Kernels
from simulator.network import Fabric
from simulator.pipeline import simulate_pipeline
from simulator.play import simulate
from simulator.step import Step
from simulator.ticks import to_seconds
from topologies.machine import Machine
from topologies.placement import Placement
from workload.gpt import GPT
from workload.lowering import lower
from workload.op import HOST
from workload.plan import Plan
from workload.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Memory:
    """One device's memory at the op where most is in use; `parts` by what it is for.

    `host_bytes` of a rank lie in the host's memory instead.
    """

    peak_bytes: int
    capacity_bytes: int
    parts: Mapping[str, int]
    op: str
    host_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Whether the device has that much."""
        return self.peak_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Prediction:
    """One step of `gpt` under `plan` on `machine`.

    `breakdown_s` has `compute`, `optimizer` and `idle`, and exposed communication by axes (`x`,
    `z+data`); it sums to `step_s`. FLOP/s are per device: model FLOPs leave recomputation out,
    hardware FLOPs include it; both count what several ranks compute alike once. MFU and HFU relate
    them to the device's peak in the plan's precision. `ops` and `comm_bytes` (payload by axes) are
    those of one rank.
    """

    gpt: GPT
    plan: Plan
    machine: str
    breakdown_s: Mapping[str, float]
    step_s: float
    model_flops_per_s_per_device: float
    hardware_flops_per_s_per_device: float
    peak_flops_per_s: float
    memory: Memory
    ops: int
    comm_bytes: Mapping[str, int]
    timeline: Timeline | None = None

    @property
    def devices(self) -> int:
        """Devices that the plan uses, one for each rank."""
        return self.plan.grid.ranks

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole job per second."""
        return self.plan.batch * self.gpt.sequence / self.step_s

    @property
    def mfu(self) -> float:
        """Model FLOP/s as a share of the peak."""
        return self.model_flops_per_s_per_device / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """Hardware FLOP/s as a share of the peak."""
        return self.hardware_flops_per_s_per_device / self.peak_flops_per_s

    def as_dict(self) -> dict[str, Any]:
        """The prediction as it stands in JSON."""
        return {
            "step_s": self.step_s,
            "tokens_per_s": self.tokens_per_s,
            "model_flops_per_s_per_device": self.model_flops_per_s_per_device,
            "hardware_flops_per_s_per_device": self.hardware_flops_per_s_per_device,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "memory": {
                "peak_bytes": self.memory.peak_bytes,
                "capacity_bytes": self.memory.capacity_bytes,
                "fits": self.memory.fits,
                "parts": dict(self.memory.parts),
                "op": self.memory.op,
                "host_bytes": self.memory.host_bytes,
            },
            "breakdown_s": dict(self.breakdown_s),
            "plan": self.plan.as_dict(),
            "plan_string": str(self.plan),
            "machine": self.machine,
            "devices": self.devices,
            "model": self.gpt.name,
            "program": {"ops": self.ops, "comm_bytes": dict(self.comm_bytes)},
        }


def predict(
    gpt: GPT,
    plan: Plan,
    machine: Machine,
    *,
    fold: bool = True,
    timeline: bool = False,
    placement: Placement | None = None,
    kernels: Kernels = PLAIN,
) -> Prediction:
    """Predict one training step of `gpt` under `plan` on `machine`.

    Without a `placement` ranks fill node after node. `fold` extrapolates from a few layers and
    micro-batches where that is exact; `timeline` adds the spans of the whole step, one rank of each
    class. `kernels` says what the software makes of the ops.
    """
    fabric = MachineFabric(machine, plan.grid.ranks, placement)
    costs = compute_costs(machine, fabric.ranks_per_node, plan.grid.ranks, kernels)
    simulated = simulate_pipeline if plan.pipe > 1 else simulate_step
    step = simulated(gpt, plan, costs, fabric, fold=fold)
    prediction = _prediction(gpt, plan, machine, step)
    if timeline:
        return replace(prediction, timeline=_timeline(gpt, plan, costs, fabric))
    return prediction


def _timeline(gpt: GPT, plan: Plan, costs: ComputeCosts, fabric: Fabric) -> Timeline:
    return simulate([lower(gpt, plan, stage) for stage in range(plan.pipe)], costs, fabric)


def _prediction(gpt: GPT, plan: Plan, machine: Machine, step: Step) -> Prediction:
    ticks = sum(step.parts_ticks.values())
    step_s = to_seconds(ticks)
    device_s = step_s * plan.grid.ranks
    return Prediction(
        gpt=gpt,
        plan=plan,
        machine=machine.name,
        breakdown_s={key: to_seconds(part) for key, part in step.parts_ticks.items()},
        step_s=step_s,
        model_flops_per_s_per_device=step.model_flops / device_s,
        hardware_flops_per_s_per_device=step.hardware_flops / device_s,
        peak_flops_per_s=peak_flops_per_s(machine, plan.precision),
        memory=Memory(
            peak_bytes=step.memory.total_bytes,
            capacity_bytes=int(machine.device.memory_bytes),
            parts={role: n for role, n in step.memory.parts.items() if role != HOST},
            op=step.memory.op,
            host_bytes=step.memory.parts[HOST],
        ),
        ops=step.ops,
        comm_bytes=step.comm_bytes,
    )
