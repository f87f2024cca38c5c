"""`plan = "best"`: the one place where a study meets the search for the best plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simgpt.options import fixed_of
from workload.plan import text_of

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.stacks import Stack
    from topologies.machine import Machine
    from topologies.placement import Placement
    from workload.gpt import GPT

BEST = "best"


def best_plan(
    gpt: GPT,
    machine: Machine,
    devices: int,
    batch: int,
    *,
    fixed: Mapping[str, Any],
    placement: Placement,
    stack: Stack,
) -> Prediction:
    """The prediction of the fastest plan that fits, of all that have the `fixed` keys."""
    from simulator import search

    kept = fixed_of(",".join(f"{key}={text_of(value)}" for key, value in fixed.items()))
    return search.best_plan(
        gpt, machine, devices, batch, fixed=kept, placement=placement, stack=stack
    )
