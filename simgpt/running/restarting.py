"""Starting a run again from its newest checkpoint when one of its ranks is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simgpt import options

if TYPE_CHECKING:
    from executor.launching.task_specs import Job

STOPPING = "stopping a few steps from here, with a summary; Ctrl-C again ends at once"
Attempt = Callable[["Job", Callable[[], None]], dict[str, Any]]


def with_restarts(attempt: Attempt, job: Job, most: int) -> dict[str, Any]:
    """The result of an attempt at a job; one that loses a rank is followed by another, so often at
    most, unless it was asked to end."""
    from executor.errors import LaunchError

    asked = False

    def interrupted() -> None:
        nonlocal asked
        asked = True
        options.note(STOPPING)

    for restart in range(1, most + 1):
        try:
            return attempt(job, interrupted)
        except LaunchError as error:
            if asked:
                raise
            options.note(f"simgpt: {error}; restart {restart} of {most}")
        assert job.saving is not None, "--max-restarts needs --save"
        job = replace(job, saving=replace(job.saving, resume=True, restarted=True))
    return attempt(job, interrupted)
