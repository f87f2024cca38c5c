"""What Linux says of a process; elsewhere nothing is known."""

from __future__ import annotations

import os
from pathlib import Path

from topologies.records import record

RUNNING, STOPPED, UNINTERRUPTIBLE = "R", "T", "D"


@record
class ProcessState:
    """A process's state as `ps` shows it, empty where unknown, and the processor time it has used
    so far in seconds."""

    state: str = ""
    processor_s: float = 0.0


def state_of(process: int) -> ProcessState:
    """The state of the process with this id.

    Source: proc(5), /proc/PID/stat, fields 3, 14 and 15.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ProcessState()
    ticks = int(fields[11]) + int(fields[12])
    return ProcessState(fields[0], ticks / os.sysconf("SC_CLK_TCK"))


def waited_s() -> float:
    """How long this process's first thread has waited so far for a core while it could run, in
    seconds; 0 where it is not known.

    Source: the Linux kernel's Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat,
    field 2.
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0
