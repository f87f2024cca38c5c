"""The memory of the machine at hand, and whether a program fits into it."""

from __future__ import annotations

import os

import torch

from executor.rank_context import scratch_of
from topologies.files.units import format_quantity
from workload.errors import PlanCannotRunError
from workload.op import HOST
from workload.program import Program

# What a rank takes of a GPU beside the program's buffers: those of its communicators, and what the
# allocator rounds up. The CUDA context is not in it: it is there when free memory is asked for.
# Half of what the shipped machines reserve for both. Not measured.
RESERVE_BYTES = 1 << 29


def host_bytes() -> int:
    """Main memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(program: Program, ranks: int) -> None:
    """Refuse a program of which `ranks` ranks do not fit into this machine's memory together."""
    peak, there = program.peak, host_bytes()
    needed = (peak.total_bytes + peak.parts[HOST]) * ranks
    if needed > there:
        raise PlanCannotRunError(
            f"{program.gpt.name} with {program.plan} needs {_gib(needed)} for {ranks} rank(s) on "
            f"this machine, which has {_gib(there)}"
        )


def check_device_memory(program: Program, rank: int, free_bytes: int) -> None:
    """Refuse a program that does not fit into what is free of the rank's GPU, with what its kernels
    hold beside their operands and what communication takes."""
    peak_bytes = program.peak.total_bytes
    needed = peak_bytes + scratch_of(peak_bytes, torch.device("cuda")) + RESERVE_BYTES
    if needed > free_bytes:
        raise PlanCannotRunError(
            f"{program.gpt.name} with {program.plan} needs {_gib(needed)} on rank {rank}, "
            f"{_gib(RESERVE_BYTES)} of it for communication, and its GPU has {_gib(free_bytes)} "
            "free"
        )


def _gib(nbytes: int) -> str:
    return format_quantity(nbytes, "bytes", binary=True)
