"""The roofline of a step: what each kind of op reaches of a device's memory and matrix rates.

A kind's intensity I is its FLOPs over the bytes that it moves through memory, each operand once, as
the program counts them; its roof is min(peak, I * memory bandwidth). FLOPs are those of matrix
products: a kind without any is held to the memory's bandwidth.

Source: Williams, Waterman, Patterson, Roofline: An Insightful Visual Performance Model for
Multicore Architectures (CACM 52(4), 2009). Not modelled: operands that stay in a cache between two
ops, so that real intensities are at least these; the arithmetic of elementwise ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.attribution.compute_ops import ComputeOps, OpTime, compute_ops
from simulator.attribution.critical_path import cause_of
from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.attention import causal_flops
from simulator.engine.ticks import to_seconds
from simulator.predict import Prediction, op_costs
from simulator.ranks.fabric import MachineFabric
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from workload.kinds import ATTENTIONS, BY_THEMSELVES, KINDS
from workload.op import STEP, Op
from workload.passes.matmul_forms import PLAIN

BEST_IN = ("bf16", "fp16")  # what a machine's best single matmul was measured in


@record
class Roofs:
    """What a device can do at most, in bytes/s and FLOP/s: its data sheet's rates, and the memory's
    that kernels reach and the best single matmul, where somebody measured one."""

    memory_bytes_per_s: float
    reached_bytes_per_s: float
    peaks: Mapping[str, float]
    best_matmul_flops_per_s: float | None

    def as_dict(self) -> dict[str, Any]:
        """As they stand in JSON."""
        return {
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "reached_bytes_per_s": self.reached_bytes_per_s,
            "peak_flops_per_s": dict(self.peaks),
            "best_matmul_flops_per_s": self.best_matmul_flops_per_s,
        }


@record
class KindOfOp:
    """The ops of one kind, or a whole step, on one device: FLOPs, bytes through memory and seconds
    of all of them.

    `work` is what a critical path files them under, `peak_flops_per_s` the peak of their data type,
    `share` their part of the time of all compute ops.
    """

    name: str
    work: str
    dtype: str
    flops: float
    nbytes: float
    seconds: float
    share: float
    peak_flops_per_s: float

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte; None without FLOPs."""
        return self.flops / self.nbytes if self.flops and self.nbytes else None

    @property
    def flops_per_s(self) -> float:
        """The rate that is reached in FLOP/s."""
        return self.flops / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """The rate that is reached in bytes/s."""
        return self.nbytes / self.seconds

    def is_memory_bound(self, roofs: Roofs) -> bool:
        """Whether its roof is the memory's bandwidth rather than the peak."""
        roof = self.peak_flops_per_s
        return self.intensity is None or self.intensity * roofs.memory_bytes_per_s < roof

    def share_of_roof(self, roofs: Roofs) -> float:
        """The rate over that of its roof by the data sheet."""
        if self.is_memory_bound(roofs):
            return self.bytes_per_s / roofs.memory_bytes_per_s
        return self.flops_per_s / self.peak_flops_per_s

    def as_dict(self, roofs: Roofs) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "kind": self.name,
            "work": self.work,
            "dtype": self.dtype,
            "flops": self.flops,
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "share": self.share,
            "flop_per_byte": self.intensity,
            "flops_per_s": self.flops_per_s,
            "bytes_per_s": self.bytes_per_s,
            "roof": "memory" if self.is_memory_bound(roofs) else "peak",
            "share_of_roof": self.share_of_roof(roofs),
        }


@record(slots=False)
class Roofline:
    """The kinds of compute ops of a device of the busiest pipeline stage, longest first, and its
    whole `step`, whose seconds have communication and waiting in them too."""

    stage: int
    kinds: Sequence[KindOfOp]
    step: KindOfOp
    roofs: Roofs

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "stage": self.stage,
            "roofs": self.roofs.as_dict(),
            "kinds": [kind.as_dict(self.roofs) for kind in self.kinds],
            "step": self.step.as_dict(self.roofs),
        }


def roofline(prediction: Prediction, machine: Machine, placement: Placement) -> Roofline:
    """The roofline of a prediction on its machine; a MachineError names a data type whose peak the
    machine's file does not have."""
    found = compute_ops_of(prediction, machine, placement)
    kinds = kinds_of(found.ops, machine)
    peaks = {kind.dtype: kind.peak_flops_per_s for kind in kinds if kind.flops}
    device = machine.device
    best = device.matmul.best_flops_per_s if any(dtype in BEST_IN for dtype in peaks) else None
    reached = device.memory_efficiency * device.memory_bytes_per_s
    roofs = Roofs(device.memory_bytes_per_s, reached, peaks, best)
    return Roofline(found.stage, kinds, whole_step(kinds, prediction), roofs)


def compute_ops_of(prediction: Prediction, machine: Machine, placement: Placement) -> ComputeOps:
    """The compute ops of a prediction's busiest stage, timed as in the prediction."""
    gpt, plan = prediction.gpt, prediction.plan
    fabric = MachineFabric(machine, plan.grid.ranks, placement)
    kernels = prediction.stack.kernels(gpt, plan, machine)
    costs = op_costs(plan, machine, fabric.ranks_per_node, None, kernels)
    forms = prediction.tuning.forms if prediction.tuning else PLAIN
    return compute_ops(gpt, plan, costs, fabric, forms, kernels.behaviour)


def kinds_of(ops: Sequence[OpTime], machine: Machine) -> list[KindOfOp]:
    """The kinds of compute ops, longest first."""
    groups: dict[tuple[str, str, str], list[OpTime]] = {}
    for each in ops:
        counts = each.op.flops > 0
        dtype = each.op.dtype if counts else ""
        groups.setdefault((kind_of(each.op), cause_of(each.op).work, dtype), []).append(each)
    every = sum(each.ticks for each in ops)
    found = [
        KindOfOp(
            name=name,
            work=work,
            dtype=dtype,
            flops=sum(each.count * flops_of(each.op) for each in own),
            nbytes=sum(each.count * each.op.nbytes for each in own),
            seconds=to_seconds(sum(each.ticks for each in own)),
            share=sum(each.ticks for each in own) / every,
            peak_flops_per_s=peak_flops_per_s(machine, dtype) if dtype else 0.0,
        )
        for (name, work, dtype), own in groups.items()
    ]
    return sorted(found, key=lambda kind: (-kind.seconds, kind.name))


def kind_of(op: Op) -> str:
    """Under which kind an op is counted: by its label where it multiplies matrices; as on a
    critical path where that has a name for it."""
    row = KINDS[op.kind]
    if row.work in BY_THEMSELVES and not op.flops:
        return row.work.value
    if op.block == STEP:
        return "optimizer"
    if op.kind in ATTENTIONS:
        return op.kind.replace("_", ".")
    return op.label if op.flops else row.roofline.value


def flops_of(op: Op) -> float:
    """The FLOPs that a device does for an op: of fused attention those that its kernel does."""
    return causal_flops(op) if op.kind in ATTENTIONS else float(op.flops)


def whole_step(kinds: Sequence[KindOfOp], prediction: Prediction) -> KindOfOp:
    """All kinds over the step's time; its peak is that at which products of several data types take
    as long as each at its own."""
    flops = sum(kind.flops for kind in kinds)
    at_peak_s = sum(kind.flops / kind.peak_flops_per_s for kind in kinds if kind.flops)
    return KindOfOp(
        name="whole step",
        work="step",
        dtype="+".join(dict.fromkeys(kind.dtype for kind in kinds if kind.flops)),
        flops=flops,
        nbytes=sum(kind.nbytes for kind in kinds),
        seconds=prediction.step_s,
        share=sum(kind.seconds for kind in kinds) / prediction.step_s,
        peak_flops_per_s=flops / at_peak_s,
    )
