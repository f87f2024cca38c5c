"""What is said before something is measured on a host that is busy with other things."""

from __future__ import annotations

from simgpt.options import note


def warn_if_busy() -> None:
    """Say on stderr that other processes load this host, if they do; nothing else is told of it."""
    from executor.calibrating.conditions import Conditions

    now = Conditions.now()
    if now.is_busy:
        note(
            f"{now.load_words}: measured times may be too long; calibrate again on a quiet machine"
        )
