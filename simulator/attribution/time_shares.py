"""Where a step's time goes along its critical path, for steps of any size.

A step of few ops is simulated and walked op by op. Any other is walked as it is predicted: a
pipeline slot by slot, a step of one stage with the micro-batches that were simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.attribution.critical_path import (
    Cause,
    PathPiece,
    simulated_step,
    ticks_by_cause,
)
from simulator.attribution.one_stage_path import one_stage_causes
from simulator.attribution.pipeline_path import pipeline_causes
from simulator.costs.analytic import ComputeCosts
from simulator.engine.ticks import to_seconds, to_ticks
from simulator.predict import Prediction
from simulator.ranks.classes import Fabric
from topologies.records import record
from workload.gpt import GPT
from workload.lowering import lower_stages
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan

MOST_OPS = 120_000  # of all stages; some seconds of simulation
ALL = "every op of the step"
SLOTS = "slot by slot; ranks of a stage alike"


@record(slots=False)
class TimeShares:
    """Seconds of the step by cause, largest first; `basis` says how they were found, and `path` is
    the critical path where the step was simulated op by op.

    They sum to the predicted step, or to the step op by op, as `basis` then says. For a pipeline
    that is a little less where stages have unlike ranks, since slots count as the slowest of those,
    and a little more where sums of gradients share links with later slots.
    """

    seconds: Mapping[Cause, float]
    basis: str
    path: Sequence[PathPiece] = ()

    @property
    def step_s(self) -> float:
        """The step that they are shares of."""
        return sum(self.seconds.values())

    def scaled(self, factor: float) -> TimeShares:
        """The shares of a step that takes `factor` times as long."""
        seconds = {cause: each * factor for cause, each in self.seconds.items()}
        return replace(self, seconds=seconds)


def shares_of(
    prediction: Prediction,
    costs: ComputeCosts,
    fabric: Fabric,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
) -> TimeShares:
    """The shares of a predicted step, on the same costs and fabric, with a stack's behaviour."""
    plan, forms = prediction.plan, prediction.tuning.forms if prediction.tuning else PLAIN
    how = prediction.gpt, plan, costs, fabric, forms, behaviour
    if prediction.ops * plan.pp <= MOST_OPS:
        path = _path(*how)
        ticks = ticks_by_cause(path)
        return TimeShares(_sorted(ticks), _basis(prediction, sum(ticks.values())), path)
    if plan.pp > 1:
        return TimeShares(_sorted(pipeline_causes(*how)), SLOTS)
    ticks, count = one_stage_causes(*how)
    basis = f"simulated with {count} micro-batches, extrapolated to {plan.micro_batches:,}"
    return TimeShares(_sorted(ticks), basis if count < plan.micro_batches else ALL)


def _basis(prediction: Prediction, ticks: int) -> str:
    """A pipeline is predicted slot by slot, its path walked op by op."""
    if ticks == to_ticks(prediction.step_s):
        return ALL
    apart = ticks / to_ticks(prediction.step_s) - 1
    return f"{ALL}, {apart:+.1%} from what it takes slot by slot"


def _path(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    forms: Forms,
    behaviour: StackBehaviour,
) -> tuple[PathPiece, ...]:
    stages = lower_stages(gpt, plan, forms, behaviour)
    return simulated_step(stages, costs, fabric).path()


def _sorted(ticks: Mapping[Cause, int]) -> dict[Cause, float]:
    ordered = sorted(ticks.items(), key=lambda item: (-item[1], item[0]))
    return {cause: to_seconds(value) for cause, value in ordered}
