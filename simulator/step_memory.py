"""One device's memory in a step: what the program holds, what there is for it, and whether it
fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from simulator.result import StepResult
from simulator.stacks.stack import EXECUTOR, Stack
from simulator.uncertainty.fitting import (
    DOES_NOT_FIT,
    EXACT,
    FITS,
    SURE,
    UNLIKELY,
    PeakErrors,
    kind_of,
    peak_errors,
    verdict_of,
    words_of,
)
from topologies.machine import Machine
from topologies.records import record
from workload.op import HOST


@record
class Room:
    """What one device has for the tensors of a job, and how far off its predicted peak may be.

    `capacity_bytes` is the device's memory less what is known to lie beside tensors: the machine's
    reserve (the driver's context, communicators) and workspaces of the stack's libraries.
    """

    capacity_bytes: int
    errors: PeakErrors = EXACT

    def p_fits(self, peak_bytes: int) -> float:
        """The probability that a run with such a predicted peak fits."""
        return self.errors.p_fits(peak_bytes, self.capacity_bytes)

    def most_bytes(self, p: float = SURE) -> int:
        """The largest predicted peak of a run that fits with that probability."""
        return self.errors.most_bytes(self.capacity_bytes, p)


@record
class Memory:
    """One device's memory at the op where most is in use; `parts` by what it is for.

    `capacity_bytes` and `errors` are those of the job's `Room`; `library_bytes` are the workspaces
    of the stack's libraries. `host_bytes` of a rank lie in the host's memory instead, of
    which it has `host_capacity_bytes` (infinite where its machine does not say);
    `stage_peak_bytes` has the peak of each stage of a pipeline. `resident_bytes` of the peak are
    there all the time, tokens left out, where there is no pipeline: no other way to recompute
    lessens these, nor do more and smaller micro-batches.
    """

    peak_bytes: int
    capacity_bytes: int
    parts: Mapping[str, int]
    op: str
    host_bytes: int = 0
    host_capacity_bytes: float = math.inf
    device_bytes: int = 0
    library_bytes: int = 0
    stage_peak_bytes: tuple[int, ...] = ()
    resident_bytes: int = 0
    errors: PeakErrors = field(default=EXACT, repr=False)

    @property
    def room(self) -> Room:
        """What the device has for the job's tensors."""
        return Room(self.capacity_bytes, self.errors)

    @property
    def p_fits(self) -> float:
        """The probability that the run fits."""
        return self.room.p_fits(self.peak_bytes)

    @property
    def sure_bytes(self) -> int:
        """The largest peak of a run of this kind that fits: with P >= 0.9."""
        return self.room.most_bytes(SURE)

    @property
    def most_bytes(self) -> int:
        """The largest peak of a run of this kind that may fit: with P > 0.1."""
        return self.room.most_bytes(UNLIKELY)

    @property
    def verdict(self) -> str:
        """`fits`, `tight` or `does not fit`."""
        return verdict_of(self.peak_bytes, self.sure_bytes, self.most_bytes)

    @property
    def fits(self) -> bool:
        """Whether the run may fit: its verdict is another than `does not fit`."""
        return self.verdict != DOES_NOT_FIT

    @property
    def is_sure(self) -> bool:
        """Whether the run fits: its verdict is `fits`."""
        return self.verdict == FITS

    def is_as_sure_as(self, other: Memory) -> bool:
        """Whether the run fits, or is no less likely to than the other one."""
        return self.is_sure or (self.fits and self.p_fits >= other.p_fits)

    @property
    def words(self) -> str:
        """The verdict with its probability: `tight: about 70 % likely to fit`."""
        return f"{self.verdict}: {words_of(self.p_fits)}"

    @property
    def spare_bytes(self) -> int:
        """By how much the peak may grow before the verdict is no longer `fits`; negative where
        it is too large already."""
        return self.sure_bytes - self.peak_bytes

    @property
    def reserve_bytes(self) -> int:
        """What of the device's memory no tensor of the program gets."""
        return self.device_bytes - self.capacity_bytes

    def as_dict(self) -> dict[str, Any]:
        """The memory as it stands in JSON."""
        most = self.host_capacity_bytes
        return {
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "verdict": self.verdict,
            "p_fits": self.p_fits,
            "sure_bytes": self.sure_bytes,
            "most_bytes": self.most_bytes,
            "parts": dict(self.parts),
            "op": self.op,
            "host_bytes": self.host_bytes,
            "device_bytes": self.device_bytes,
            "reserve_bytes": self.reserve_bytes,
            "library_bytes": self.library_bytes,
            **({"host_capacity_bytes": int(most)} if math.isfinite(most) else {}),
            "stage_peak_bytes": list(self.stage_peak_bytes),
        }


def memory_of(
    step: StepResult, machine: Machine, stack: Stack, *, ranks: int, experts: bool
) -> Memory:
    """The memory of a simulated step on a machine's device, under a stack, of a model with
    `experts` or without; so many ranks share the memory of their hosts, as many as devices."""
    sharing = min(ranks, machine.devices_per_node)
    fullest, room = step.memory, room_for(machine, stack, experts=experts)
    return Memory(
        peak_bytes=fullest.total_bytes,
        capacity_bytes=room.capacity_bytes,
        parts={role: n for role, n in fullest.parts.items() if role != HOST},
        op=fullest.op,
        host_bytes=fullest.parts[HOST],
        host_capacity_bytes=machine.node.host.memory_bytes / sharing,
        device_bytes=int(machine.device.memory_bytes),
        library_bytes=stack.library_bytes(machine),
        stage_peak_bytes=tuple(use.total_bytes for use in step.stage_memory),
        resident_bytes=step.resident_bytes,
        errors=room.errors,
    )


def room_for(machine: Machine, stack: Stack = EXECUTOR, *, experts: bool = False) -> Room:
    """What a machine's device has for the tensors of a stack's jobs, of models with `experts` or
    without."""
    usable = machine.device.usable_bytes - stack.library_bytes(machine)
    return Room(int(usable), peak_errors(kind_of(stack, experts=experts)))
