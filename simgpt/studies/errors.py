"""What can be wrong with a study, or with those that work on it."""

from __future__ import annotations

from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus


class WorkersError(SimgptError):
    """Workers that cannot start, or that are gone; the rows so far are kept."""

    exit_code = ExitStatus.MACHINE_FAILED


class ResultsError(SimgptError):
    """A folder that takes no more rows: a full disk, say."""

    exit_code = ExitStatus.MACHINE_FAILED
