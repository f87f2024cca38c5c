"""What is refused: what would take too much memory or time, and measured times of other kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.costs.kernels import PLAIN_KERNELS, Kernels
from simulator.result import StepResult
from topologies.machine import Machine
from workload.errors import PlanCannotRunError
from workload.exchange.table import DISPATCHERS
from workload.pipeline.schedule import OPPOSED, ways
from workload.plan import Plan
from workload.recipes.table import NO_RECIPE

ONCE = " or ".join(each.name for each in DISPATCHERS.values() if each.once)
MEASURED = (
    "the times of ops were measured with simgpt's own kernels: no stack, cp, fp8 or "
    f"dispatcher={ONCE} with them"
)
EMULATED = "was measured without the matmuls of recipes, which simgpt's own kernels emulate"
MOST_SLOTS = 1_000_000  # some 200 MB and half a minute
MOST_SPANS = 1_000_000  # some 300 MB of trace, which Perfetto still opens


def check_slots(plan: Plan) -> None:
    """Refuse more micro-batches than there is memory for where the schedule does not repeat."""
    slots = plan.pp * plan.vpp * ways(plan.pipeline.schedule) * plan.micro_batches * plan.passes
    whole, other = "never repeats itself", "a smaller batch or schedule=1f1b"
    what = f"schedule={plan.pipeline.schedule}"
    if plan.pipeline.schedule in OPPOSED or plan.in_pairs:
        whole = "is simulated without its steady state"
    if plan.passes > 1:
        what, other = f"a step of optimizer={plan.training.optimizer}", "or a smaller batch"
    repeats = (
        plan.pipeline.schedule not in ("gpipe", *OPPOSED) and plan.passes == 1 and not plan.in_pairs
    )
    if not repeats and plan.pp > 1 and slots > MOST_SLOTS:
        raise PlanCannotRunError(
            f"{what} {whole}, so that each of {plan.micro_batches:,} "
            f"micro-batches on {plan.pp} stages would be simulated, {slots:,} in all and more "
            f"than {MOST_SLOTS:,}; give a larger mbs, {other}"
        )


def check_timeline(plan: Plan, step: StepResult) -> None:
    """Refuse a timeline that no viewer opens."""
    spans = step.ops * plan.pp
    if spans > MOST_SPANS:
        raise PlanCannotRunError(
            f"a timeline of {plan.pp} stages would have {spans:,} spans, more than "
            f"{MOST_SPANS:,}; fewer micro-batches (a smaller batch) show the same pipeline"
        )


def check_measured(
    machine: Machine,
    kernels: Kernels,
    op_seconds: Mapping[str, float] | None = None,
    recipe: str = NO_RECIPE,
) -> None:
    """Refuse a stack's kernels, or a recipe, where the times of ops were measured with others."""
    measured = machine.profile is not None and bool(machine.profile.kernels)
    if (op_seconds is not None or measured) and replace(kernels, tabled=False) != PLAIN_KERNELS:
        raise PlanCannotRunError(MEASURED)
    if (op_seconds is not None or measured) and recipe != NO_RECIPE:
        raise PlanCannotRunError(
            f"recipe={recipe} has no time on {machine.name}, which {EMULATED}; predict it on a "
            "machine file with the peaks of its devices"
        )
