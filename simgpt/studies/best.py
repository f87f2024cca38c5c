"""The one place where a study asks for the best plan of a point."""

from __future__ import annotations

from simgpt.studies.errors import StudyError

BEST = "best"


def check_best(plan: object) -> None:
    """Refuses `plan = "best"` as long as nothing can answer it."""
    if plan == BEST:
        raise StudyError(
            'plan = "best" is not supported; give a plan such as "z=64,data=rest,recompute=full"'
        )
