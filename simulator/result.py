"""What simulating one step gives."""

from __future__ import annotations

from topologies.records import record
from workload.memory import MemoryUse


@record(slots=False)
class StepResult:
    """One simulated step.

    `parts_ticks` sums to the step's time, as in `simulator/attribution/breakdown.py`. `ops` and
    `comm_bytes` are those of one rank: in a pipeline, of the stage whose time is broken down. FLOPs
    are those of the whole job, `stage_memory` those of a rank of each stage. `micro_batches` says
    how many were simulated. `resident_bytes` a device without a pipeline has in memory all the
    time, whatever is recomputed and however large micro-batches are.
    """

    parts_ticks: dict[str, int]
    stage_memory: tuple[MemoryUse, ...]
    ops: int
    comm_bytes: dict[str, int]
    model_flops: int
    hardware_flops: int
    rank_classes: int
    micro_batches: int
    resident_bytes: int = 0

    @property
    def memory(self) -> MemoryUse:
        """The fullest rank's memory."""
        return max(self.stage_memory, key=lambda use: use.total_bytes)
