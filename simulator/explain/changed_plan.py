"""A predicted plan with some of its fields changed: whether it runs, and whether it fits."""

from __future__ import annotations

from typing import Any

from simulator.explain.nearest_fit import memory_of_stack
from simulator.predict import Prediction
from simulator.search.bounds.peak_memory import plan_bytes
from simulator.stacks.where import following
from topologies.errors import SimgptError
from workload.gpt import GPT
from workload.lowering import check
from workload.plan import Plan

Change = dict[str, Any]


def changed(prediction: Prediction, change: Change) -> Plan:
    """The plan with a change, and with what its stack then gives (`simulator/stacks/where.py`)."""
    before = prediction.plan
    return before.changed(**following(prediction.stack.plan, before, change))


def can_run(prediction: Prediction, change: Change) -> bool:
    """Whether a plan can be changed so, whatever memory it then needs."""
    try:
        plan = changed(prediction, change)
        gpt = _model(prediction, plan)
        prediction.stack.check(plan, gpt)
        check(gpt, plan)
    except SimgptError:
        return False
    return True


def fits(prediction: Prediction, change: Change) -> bool:
    """Whether a plan can be changed so and then fits: with P >= 0.9."""
    room = prediction.memory.sure_bytes
    return can_run(prediction, change) and peak_bytes(prediction, change) <= room


def peak_bytes(prediction: Prediction, change: Change) -> int:
    """What a plan that can be changed so then has in memory at most."""
    plan = changed(prediction, change)
    gpt = _model(prediction, plan)
    return plan_bytes(gpt, plan, memory_of_stack(prediction.stack, plan))


def _model(prediction: Prediction, plan: Plan) -> GPT:
    """The model with the vocabulary that the plan's ranks of x need."""
    same = plan.tp == prediction.plan.tp
    return prediction.gpt if same else prediction.stack.model(prediction.gpt, plan.tp)
