"""The root of the project's errors, and what can be wrong with a machine, a quantity or a file."""

from __future__ import annotations

from topologies.exit_status import ExitStatus


class SimgptError(Exception):
    """Something the user can mend; the message is one sentence in the user's words."""

    exit_code: ExitStatus = ExitStatus.WRONG_INPUT


class UnitError(SimgptError):
    """A quantity without its unit, with a wrong unit, or that is no quantity at all."""


class MachineError(SimgptError):
    """A machine that is not known, or whose description does not hold together."""


class TooFewDevicesError(MachineError):
    """More ranks were asked for than the machine has devices."""

    exit_code = ExitStatus.CANNOT_RUN


class OutputError(SimgptError):
    """A file that cannot be written under the name that was given."""


class DiskError(OutputError):
    """A file that the disk does not take: it is full, or broken."""

    exit_code = ExitStatus.MACHINE_FAILED
