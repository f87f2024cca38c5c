"""What can go wrong between a plan and the devices it should run on."""

from __future__ import annotations

from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus


class LaunchError(SimgptError):
    """The launch environment cannot carry the run: ranks, ports, devices, torch itself."""

    exit_code = ExitStatus.MACHINE_FAILED


class PeersLostError(LaunchError):
    """Another rank is gone; what became of it is the cause, and this a consequence."""


class DisturbedError(LaunchError):
    """Other processes disturbed a measurement: its repeats disagree."""


class OtherDeviceError(SimgptError):
    """A machine was given whose devices are not those of this host, where steps are to run."""


class DivergedError(SimgptError):
    """The loss is not a finite number any more, so that nothing is left to train."""

    exit_code = ExitStatus.DIVERGED


class TextError(SimgptError):
    """The training text cannot be read, or is too short for one sequence."""


class WeightsError(SimgptError):
    """Published weights that cannot be read, or are not those of the model."""


class DryRunError(SimgptError):
    """A program played without its machine is not what the program says, or does not end."""

    exit_code = ExitStatus.DIVERGED
