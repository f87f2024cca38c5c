"""What can be wrong with a folder of checkpoints, or with one of them."""

from __future__ import annotations

from executor.errors import LaunchError
from topologies.errors import SimgptError


class CheckpointError(SimgptError):
    """A checkpoint that does not belong to the run which should go on from it."""


class DamagedCheckpointError(LaunchError):
    """A checkpoint of which something is missing, or not what was written."""
