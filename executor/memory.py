"""The memory of the machine at hand, and whether a program fits into it."""

from __future__ import annotations

import os

from topologies.units import format_quantity
from workload.errors import PlanCannotRunError
from workload.op import HOST
from workload.program import Program


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


def _gib(nbytes: int) -> str:
    return format_quantity(nbytes, "bytes", binary=True)
