"""What can be wrong with a call from Python, beside what can be wrong with a question."""

from __future__ import annotations

from topologies.errors import SimgptError
from topologies.exit_status import ExitStatus


class ArgumentError(SimgptError):
    """An argument that a function of `import simgpt` does not take."""


class NoAnswerError(SimgptError):
    """A command that ended before it had an answer, as a search whose time was too short."""

    exit_code = ExitStatus.MACHINE_FAILED


class MissingLibraryError(SimgptError):
    """A library that simgpt does without, unless it is asked for just this."""


class NothingToDrawError(SimgptError):
    """An answer without anything that a figure could show."""
