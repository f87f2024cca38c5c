"""The root of the project's errors, and what can be wrong with a machine, a quantity or a file."""

from __future__ import annotations

from topologies.exit_status import ExitStatus


class SimgptError(Exception):
    """Something the user can mend; the message is one sentence in the user's words."""

    exit_code: ExitStatus = ExitStatus.WRONG_INPUT
    lines: tuple[str, ...] = ()  # an example below the sentence, as a file would have it


class UnitError(SimgptError):
    """A quantity without its unit, with a wrong unit, or that is no quantity at all."""


class MachineError(SimgptError):
    """A machine that is not known, or whose description does not hold together."""


class UnknownDeviceError(MachineError):
    """A device that the library does not have; `lines` are those of a file that describes one."""

    def __init__(self, message: str, lines: tuple[str, ...]) -> None:
        super().__init__(message)
        self.lines = lines

    def __reduce__(self) -> tuple[object, ...]:
        """For errors that come from another process."""
        return type(self), (str(self), self.lines)


class TooFewDevicesError(MachineError):
    """More ranks were asked for than the machine has devices."""

    exit_code = ExitStatus.CANNOT_RUN


class OutputError(SimgptError):
    """A file that cannot be written under the name that was given."""


class DiskError(OutputError):
    """A file that the disk does not take: it is full, or broken."""

    exit_code = ExitStatus.MACHINE_FAILED
