"""What Linux says of a process; elsewhere nothing is known."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

RUNNING, STOPPED, UNINTERRUPTIBLE = "R", "T", "D"


@dataclass(frozen=True, slots=True)
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
