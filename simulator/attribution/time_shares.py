"""Where a step's time goes along its critical path, for steps of any size.

A step of few ops is simulated op by op. One of many micro-batches is simulated with fewer and with
one more than that (where stages hold several chunks, with one more for each stage): what the
further ones add is added for each of the rest, and the sum must be the step's time to the
picosecond, else more of them are simulated. Where that takes too many ops, a pipeline is walked
slot by slot; for any other step the shares are those of the breakdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.attribution.critical_path import (
    OF_HOST,
    Cause,
    PathPiece,
    simulated_step,
    ticks_by_cause,
)
from simulator.costs.analytic import ComputeCosts
from simulator.engine.stream_graph import HOST, PIPE
from simulator.engine.ticks import to_seconds, to_ticks
from simulator.pipeline.slot_path import path_parts
from simulator.predict import Prediction
from simulator.ranks.classes import Fabric
from workload.gpt import GPT
from workload.lowering import lower
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import NO_HABITS, Habits
from workload.plan import Plan

MOST_OPS = 120_000  # of all stages; some seconds of simulation
COLLECTIVES = "collectives"
PATH, STREAM = "critical path", "compute stream"


@dataclass(frozen=True)
class TimeShares:
    """Seconds of the step by cause, largest first, along what is named in `along`; `basis` says how
    they were found, and `path` is the critical path where it was walked whole.

    They sum to the predicted step, or to the step op by op, as `basis` then says. For a pipeline
    that is a little less where stages have unlike ranks, since slots count as the slowest of those,
    and a little more where sums of gradients share links with later slots.
    """

    seconds: Mapping[Cause, float]
    basis: str
    path: Sequence[PathPiece] = ()
    along: str = PATH

    @property
    def step_s(self) -> float:
        """The step that they are shares of."""
        return sum(self.seconds.values())

    def scaled(self, factor: float) -> TimeShares:
        """The same shares of a step that takes so many times as long."""
        seconds = {cause: each * factor for cause, each in self.seconds.items()}
        return replace(self, seconds=seconds)


def shares_of(
    prediction: Prediction, costs: ComputeCosts, fabric: Fabric, habits: Habits = NO_HABITS
) -> TimeShares:
    """The shares of a predicted step, on the same costs and fabric, with a stack's habits."""
    plan, forms = prediction.plan, prediction.tuning.forms if prediction.tuning else PLAIN
    each = prediction.ops * plan.pp / plan.micro_batches
    if prediction.ops * plan.pp <= MOST_OPS:
        path = _path(prediction.gpt, plan, costs, fabric, (forms, habits))
        ticks = ticks_by_cause(path)
        return TimeShares(_sorted(ticks), _basis(prediction, sum(ticks.values())), path)
    unit = plan.pp if plan.vpp > 1 else 1  # whole rounds of chunks in turns
    count = -(-(2 * plan.pp + 2) // unit) * unit
    while plan.has_even_turns and count < plan.micro_batches and each * count <= MOST_OPS:
        few = [
            ticks_by_cause(
                _path(prediction.gpt, plan.with_micro_batches(n), costs, fabric, (forms, habits))
            )
            for n in (count, count + unit)
        ]
        whole = extrapolated(few[0], few[1], (plan.micro_batches - count) // unit)
        if sum(whole.values()) == to_ticks(prediction.step_s):
            few_and_more = f"{count} and {count + unit} micro-batches"
            basis = f"simulated with {few_and_more}, extrapolated to {plan.micro_batches:,}"
            return TimeShares(_sorted(whole), basis)
        count *= 2
    if plan.pp > 1:
        parts = path_parts(prediction.gpt, plan, costs, fabric, forms, habits)
        return TimeShares(_of_parts(parts, messages=PIPE), "slot by slot; ranks of a stage alike")
    parts = {key: to_ticks(seconds) for key, seconds in prediction.breakdown_s.items()}
    return TimeShares(_of_parts(parts, messages=""), "the path of so many ops was not walked",
                  along=STREAM)  # fmt: skip


def _basis(prediction: Prediction, ticks: int) -> str:
    """A pipeline is predicted slot by slot, its path walked op by op."""
    if ticks == to_ticks(prediction.step_s):
        return "every op of the step"
    apart = ticks / to_ticks(prediction.step_s) - 1
    return f"every op of the step, {apart:+.1%} from what it takes slot by slot"


def extrapolated(
    few: Mapping[Cause, int], more: Mapping[Cause, int], further: int
) -> dict[Cause, int]:
    """`few`, plus so many times the difference between `more` and it."""
    causes = dict.fromkeys([*few, *more])
    return {c: few.get(c, 0) + further * (more.get(c, 0) - few.get(c, 0)) for c in causes}


def _path(
    gpt: GPT, plan: Plan, costs: ComputeCosts, fabric: Fabric, how: tuple[Forms, Habits]
) -> tuple[PathPiece, ...]:
    stages = [lower(gpt, plan, stage, forms=how[0], habits=how[1]) for stage in range(plan.pp)]
    return simulated_step(stages, costs, fabric).path()


def _sorted(ticks: Mapping[Cause, int]) -> dict[Cause, float]:
    ordered = sorted(ticks.items(), key=lambda item: (-item[1], item[0]))
    return {cause: to_seconds(value) for cause, value in ordered}


def _of_parts(parts: Mapping[str, int], messages: str) -> dict[Cause, float]:
    """Time by the keys of a breakdown, which tells no kinds of compute or of collectives apart."""
    causes: dict[Cause, int] = {}
    for key, ticks in parts.items():
        cause = (
            Cause("", key) if key in ("compute", "optimizer", "idle") else Cause(key, COLLECTIVES)
        )
        if key == messages:
            cause = Cause(key, "messages")
        elif key == HOST:
            cause = OF_HOST
        if ticks > 0:
            causes[cause] = ticks
    return _sorted(causes)
