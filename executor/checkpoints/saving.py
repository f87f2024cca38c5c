"""Where and how often a run is saved; free of torch, so that a command line can ask."""

from __future__ import annotations

import re
from typing import Any

from executor.checkpoints.errors import CheckpointError
from topologies.records import record

_EVERY = re.compile(r"(\d{1,9})\s*(min|h|)")
_MINUTES_S = {"min": 60.0, "h": 3600.0}


@record(kw_only=True)
class Saving:
    """Checkpoints go into `folder` after each `every_steps` steps, or about each `every_s` seconds;
    the newest `keep` stay.

    With `resume` a run goes on from the newest one that is intact, with `restarted` from the newest
    that leaves a step to train: what a launcher starts again may have ended with its last step.
    With `anyway` it goes on even if it is not the run that was saved. `owned` is known once the
    folder is locked against other runs.
    """

    folder: str
    every_steps: int = 0
    every_s: float = 0.0
    keep: int = 3
    resume: bool = False
    restarted: bool = False
    anyway: bool = False
    owned: bool = False


def interval(text: str) -> dict[str, Any]:
    """How often to save, as fields of a `Saving`.

    >>> interval("10"), interval("15min")
    ({'every_steps': 10}, {'every_s': 900.0})
    """
    found = _EVERY.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise CheckpointError(
            f"--save-every {text} must be a number of steps of at least 1, as in 10, or a time, as "
            "in 15min or 2h"
        )
    count, unit = int(found[1]), found[2]
    return {"every_s": count * _MINUTES_S[unit]} if unit else {"every_steps": count}
