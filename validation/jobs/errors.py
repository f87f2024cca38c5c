"""What can be wrong with the log or trace of a measured job."""

from __future__ import annotations

from topologies.errors import SimgptError


class LogError(SimgptError):
    """A log or trace that is not known, is cut off, or holds no steps."""
