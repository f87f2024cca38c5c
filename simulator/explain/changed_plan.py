"""A predicted plan with some of its fields changed: whether it runs, and whether it fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.explain.nearest_fit import habits_in_memory
from simulator.predict import Prediction
from simulator.search.bounds.peak_memory import plan_bytes
from topologies.errors import SimgptError
from workload.lowering import check

Change = dict[str, Any]


def can_run(prediction: Prediction, change: Change) -> bool:
    """Whether a plan can be changed so, whatever memory it then needs."""
    try:
        plan = replace(prediction.plan, **change)
        prediction.stack.check(plan, prediction.gpt)
        check(prediction.gpt, plan)
    except SimgptError:
        return False
    return True


def fits(prediction: Prediction, change: Change) -> bool:
    """Whether a plan can be changed so and then fits."""
    room = prediction.memory.capacity_bytes
    return can_run(prediction, change) and peak_bytes(prediction, change) <= room


def peak_bytes(prediction: Prediction, change: Change) -> int:
    """What a plan that can be changed so then has in memory at most."""
    plan = replace(prediction.plan, **change)
    return plan_bytes(prediction.gpt, plan, habits_in_memory(prediction.stack, plan))
