"""What simulating one step gives."""

from __future__ import annotations

from dataclasses import dataclass

from workload.memory import MemoryUse


@dataclass(frozen=True)
class StepResult:
    """One simulated step.

    `parts_ticks` sums to the step's time, as in `simulator/attribution/breakdown.py`. `ops` and
    `comm_bytes` are those of one rank: in a pipeline, of the stage whose time is broken down. FLOPs
    are those of the whole job, memory the fullest rank's. `micro_batches` says how many were
    simulated.
    """

    parts_ticks: dict[str, int]
    memory: MemoryUse
    ops: int
    comm_bytes: dict[str, int]
    model_flops: int
    hardware_flops: int
    rank_classes: int
    micro_batches: int
