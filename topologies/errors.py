"""The root of the project's errors, and what can be wrong with a machine or a quantity."""

from __future__ import annotations


class SimgptError(Exception):
    """Something the user can mend; the message is one sentence in the user's words."""

    exit_code = 2


class UnitError(SimgptError):
    """A quantity without its unit, with a wrong unit, or that is no quantity at all."""


class MachineError(SimgptError):
    """A machine that is not known, or whose description does not hold together."""


class TooFewDevicesError(MachineError):
    """More ranks were asked for than the machine has devices."""

    exit_code = 3
