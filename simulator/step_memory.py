"""One device's memory in a step: what the program holds, and what there is for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.result import StepResult
from simulator.stacks.stack import EXECUTOR, Stack
from topologies.machine import Machine
from workload.op import HOST


@dataclass(frozen=True, slots=True)
class Memory:
    """One device's memory at the op where most is in use; `parts` by what it is for.

    `capacity_bytes` is what the device has for tensors: its memory less the reserve of the machine
    (driver, communicators), less `library_bytes` (workspaces of the stack's libraries) and what the
    stack's allocator cannot use. `host_bytes` of a rank lie in the host's memory instead;
    `stage_peak_bytes` has the peak of each stage of a pipeline. `resident_bytes` of the peak are
    there all the time, tokens left out, where there is no pipeline: no other way to recompute
    lessens these, nor do more and smaller micro-batches.
    """

    peak_bytes: int
    capacity_bytes: int
    parts: Mapping[str, int]
    op: str
    host_bytes: int = 0
    device_bytes: int = 0
    library_bytes: int = 0
    stage_peak_bytes: tuple[int, ...] = ()
    resident_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Whether the device has that much for tensors."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def reserve_bytes(self) -> int:
        """What of the device's memory no tensor of the program gets."""
        return self.device_bytes - self.capacity_bytes

    def as_dict(self) -> dict[str, Any]:
        """The memory as it stands in JSON."""
        return {
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "parts": dict(self.parts),
            "op": self.op,
            "host_bytes": self.host_bytes,
            "device_bytes": self.device_bytes,
            "reserve_bytes": self.reserve_bytes,
            "library_bytes": self.library_bytes,
            "stage_peak_bytes": list(self.stage_peak_bytes),
        }


def memory_of(step: StepResult, machine: Machine, stack: Stack) -> Memory:
    """The memory of a simulated step on a machine's device, under a stack."""
    fullest = step.memory
    return Memory(
        peak_bytes=fullest.total_bytes,
        capacity_bytes=room_for_tensors(machine, stack),
        parts={role: n for role, n in fullest.parts.items() if role != HOST},
        op=fullest.op,
        host_bytes=fullest.parts[HOST],
        device_bytes=int(machine.device.memory_bytes),
        library_bytes=stack.library_bytes(machine),
        stage_peak_bytes=tuple(use.total_bytes for use in step.stage_memory),
        resident_bytes=step.resident_bytes,
    )


def room_for_tensors(machine: Machine, stack: Stack = EXECUTOR) -> int:
    """What a device has for a program's tensors under a stack."""
    usable = machine.device.usable_bytes - stack.library_bytes(machine)
    return int(usable * (1 - stack.fragmentation))
