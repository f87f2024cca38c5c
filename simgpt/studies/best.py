"""`plan = "best"`: the one place where a study meets the search for the best plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simgpt.studies.errors import StudyError

if TYPE_CHECKING:
    from simulator.prediction import Prediction
    from topologies.machine import Machine
    from topologies.placement import Placement
    from workload.gpt import GPT

BEST = "best"


def check_best(plan: object) -> None:
    """Refuses `plan = "best"` while a study reads it, as long as `best_plan` cannot answer it."""
    if plan == BEST:
        raise _not_supported()


def best_plan(
    gpt: GPT,
    machine: Machine,
    devices: int,
    batch: int,
    *,
    fixed: Mapping[str, Any],
    placement: Placement,
) -> Prediction:
    """The prediction of the fastest plan that fits, of all that have the `fixed` keys."""
    raise _not_supported()


def _not_supported() -> StudyError:
    return StudyError(
        'plan = "best" is not supported; give a plan such as "z=64,data=rest,recompute=full"'
    )
