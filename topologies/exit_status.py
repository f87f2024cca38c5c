"""How a command can end: one table of exit statuses for all of them.

docs/exit-statuses.md says which command ends with which; a test holds it to this one.
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """An exit status and what it means. One above `SIGNALLED` is that and a signal's number."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitStatus:
        status = int.__new__(cls, value)
        status._value_ = value
        status.meaning = meaning
        return status

    DONE = 0, "answered, and nothing is wrong"
    BUG = (
        1,
        "simgpt itself failed, which is a bug; or nobody reads its answer on, as `| head -1`",
    )
    WRONG_INPUT = 2, "the input is wrong: an option, a file, or what they say together"
    CANNOT_RUN = (
        3,
        (
            "the plan cannot run: it divides nothing, or does not fit (a tight plan may run, "
            "and is no error); of a search, no plan"
        ),
    )
    OUTSIDE_TOLERANCE = 4, "a validation is outside its tolerance"
    MACHINE_FAILED = (
        5,
        "this machine failed: memory, disk, a process, a library; or the time was too short",
    )
    DIVERGED = 6, "a loss is not finite, or a program that was played is not what it says"
    SIGNALLED = 128, "a signal ended it: 128 and its number (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP)"
