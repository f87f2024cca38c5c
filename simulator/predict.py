"""The prediction: how long one step takes on a machine, what limits it, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from simulator.answer_words import BALANCED, OF_BALANCED, assumes_balance, of_no_published
from simulator.costs.analytic import ComputeCosts, compute_costs, peak_flops_per_s
from simulator.costs.kernels import Kernels
from simulator.costs.matmul_tuning import Tuning, fastest_forms, is_tuned
from simulator.costs.measured import MeasuredCosts
from simulator.costs.published import PublishedCosts
from simulator.economics import Cost, cost_of
from simulator.engine.simulate import simulate_timeline
from simulator.engine.ticks import to_seconds
from simulator.engine.whole_step import simulate_step
from simulator.expert_load import ExpertLoad, step_and_load
from simulator.limits import check_measured, check_slots, check_timeline
from simulator.pipeline import simulate_pipeline
from simulator.ranks.classes import Fabric
from simulator.ranks.fabric import fabric_of
from simulator.result import StepResult
from simulator.stacks.logged import Logged, logged
from simulator.stacks.stack import EXECUTOR, Stack
from simulator.step_memory import Memory, memory_of
from simulator.uncertainty.anchors import Anchor, Anchoring, Place, anchoring_of, place_of
from simulator.uncertainty.difference import DifferenceError, difference_error
from simulator.uncertainty.step_range import StepRange, run_of_plan, step_range
from topologies.machine import Machine
from topologies.placement import Placement
from topologies.records import record
from topologies.session import gc_paused, in_session
from workload.errors import PlanCannotRunError
from workload.expert_loads.capacity import empty_flops, mean_dropped
from workload.gpt import GPT
from workload.lowering import lower_stages
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import StackBehaviour
from workload.plan import Plan
from workload.recipes.table import FP8
from workload.timeline import Timeline

MUCH_MASKED = 0.8  # of the MFU is left without the masked half of attention, where that is said


def is_much_masked(mfu: float, mfu_causal: float) -> bool:
    """Whether a causal mask leaves out so much of the MFU's FLOPs that an answer says so."""
    return mfu_causal < MUCH_MASKED * mfu


@record
class Prediction:
    """One step of `gpt` under `plan` on `machine`.

    `breakdown_s` has `compute`, `optimizer` and `idle`, and exposed communication by axes (`x`,
    `z+dp`); it sums to `step_s`. FLOP/s are per device: model FLOPs leave recomputation out,
    hardware FLOPs include it; both count what several ranks compute alike once. MFU and HFU relate
    them to the device's peak in the plan's precision. `ops` and `comm_bytes` (payload by axes) are
    those of one rank. For its `cost` a device is busy in `compute` and `optimizer`. `tuning` is
    there where the plan tunes matmul forms. `device` names the machine's devices. `load` is there
    where the model has a histogram of its experts.
    """

    gpt: GPT
    plan: Plan
    machine: str
    breakdown_s: Mapping[str, float]
    step_s: float
    model_flops_per_s_per_device: float
    hardware_flops_per_s_per_device: float
    peak_flops_per_s: float
    memory: Memory
    ops: int
    comm_bytes: Mapping[str, int]
    cost: Cost
    stack: Stack = EXECUTOR
    device: str = ""
    tuning: Tuning | None = None
    timeline: Timeline | None = None
    load: ExpertLoad | None = None
    anchoring: Anchoring | None = None

    @property
    def place(self) -> Place:
        """Where the step lies among others, by which anchors are near or far."""
        return place_of(self.gpt, self.plan, self.stack, self.device)

    def anchored(self, anchors: Sequence[Anchor]) -> Prediction:
        """The step scaled by measured steps that are like it, as far as there are any."""
        return self.scaled(anchoring_of(self.place, anchors))

    def scaled(self, by: Anchoring) -> Prediction:
        """The step and its memory as anchors make them, or those of the same question."""
        factor, load, tuning = by.factor, self.load, self.tuning
        if load is not None:
            load = replace(load, balanced_step_s=load.balanced_step_s * factor)
        if tuning is not None:
            saved_s = (tuning.compute_s * factor, tuning.step_s * factor)
            tuning = replace(tuning, compute_s=saved_s[0], step_s=saved_s[1])
        return replace(
            self,
            step_s=self.step_s * factor,
            breakdown_s={part: seconds * factor for part, seconds in self.breakdown_s.items()},
            model_flops_per_s_per_device=self.model_flops_per_s_per_device / factor,
            hardware_flops_per_s_per_device=self.hardware_flops_per_s_per_device / factor,
            cost=self.cost.scaled(factor),
            load=load,
            tuning=tuning,
            memory=self.memory if by.memory is None else by.memory.of(self.memory),
            anchoring=by,
        )

    @property
    def range(self) -> StepRange:
        """What the step takes in eight of ten cases."""
        return self.range_at(0.0)

    def range_at(self, further: float) -> StepRange:
        """What the step takes in eight of ten cases, for a plan that is further off published runs
        than its stack, devices, tensor parallelism and pipeline tell."""
        if self.anchoring is not None and self.anchoring.used:
            return self.anchoring.range_of(self.step_s)
        how = self.stack, self.device, self.plan
        experts = bool(self.gpt.moe.experts)
        found = step_range(self.step_s, *how, experts=experts, further=further)
        more = [OF_BALANCED] if self.load is not None else []
        more += of_no_published(self.plan.training.recipe, experts=experts)
        return replace(found, words="; ".join([found.words, *more])) if more else found

    @property
    def difference_error(self) -> DifferenceError:
        """By how much the ratio of its step to another plan's may be wrong."""
        run = run_of_plan(self.stack, self.device, self.plan)
        return difference_error(run, experts=bool(self.gpt.moe.experts))

    @property
    def plan_text(self) -> str:
        """The plan as its stack reads it."""
        return self.stack.text(self.plan)

    def in_words(self, text: str) -> str:
        """A text about its plan with axes as its stack's users call them."""
        return self.stack.in_words(self.plan, text)

    @property
    def devices(self) -> int:
        """Devices that the plan uses, one for each rank."""
        return self.plan.grid.ranks

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step of the whole job."""
        return self.plan.batch * self.gpt.sequence

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole job per second."""
        return self.tokens_per_step / self.step_s

    @property
    def mfu(self) -> float:
        """Model FLOP/s as a share of the peak."""
        return self.model_flops_per_s_per_device / self.peak_flops_per_s

    @property
    def mfu_causal(self) -> float:
        """`mfu` without the scores and values that a causal mask leaves out, which `mfu` counts as
        Narayanan et al. (SC21) do."""
        device_s = self.step_s * self.devices
        masked = self.gpt.masked_flops(self.plan.batch) / device_s
        return (self.model_flops_per_s_per_device - masked) / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """Hardware FLOP/s as a share of the peak."""
        return self.hardware_flops_per_s_per_device / self.peak_flops_per_s

    @property
    def logged(self) -> Logged | None:
        """The utilisation as the stack's own log counts it, where that is known."""
        return logged(self)

    def as_dict(self) -> dict[str, Any]:
        """The prediction as it stands in JSON."""
        dropped = mean_dropped(self.gpt, self.plan)
        return {
            "step_s": self.step_s,
            **self.range.as_dict(),
            "difference_error": self.difference_error.share,
            "tokens_per_s": self.tokens_per_s,
            "model_flops_per_s_per_device": self.model_flops_per_s_per_device,
            "hardware_flops_per_s_per_device": self.hardware_flops_per_s_per_device,
            "mfu": self.mfu,
            "mfu_causal": self.mfu_causal,
            "hfu": self.hfu,
            **({"logged": asdict(log)} if (log := self.logged) is not None else {}),
            "memory": self.memory.as_dict(),
            "breakdown_s": dict(self.breakdown_s),
            "cost": self.cost.as_dict(),
            "plan": self.plan.in_answer(),
            "plan_string": self.plan_text,
            "machine": self.machine,
            "device": self.device,
            "stack": self.stack.name,
            "devices": self.devices,
            "model": self.gpt.name,
            "matmul_forms": self.tuning.as_dict() if self.tuning is not None else None,
            "program": {"ops": self.ops, "comm_bytes": dict(self.comm_bytes)},
            **({"routing": self.load.as_dict()} if self.load is not None else {}),
            **({"routing_assumed": BALANCED} if assumes_balance(self.gpt) else {}),
            **({"dropped": dropped} if dropped else {}),
            **({"fp8": True} if self.plan.training.recipe == FP8 else {}),
            **({"anchor": self.anchoring.as_dict()} if self.anchoring is not None else {}),
        }


@in_session
@gc_paused()
def predict(
    gpt: GPT,
    plan: Plan,
    machine: Machine,
    *,
    fold: bool = True,
    timeline: bool = False,
    placement: Placement | None = None,
    op_seconds: Mapping[str, float] | None = None,
    stack: Stack = EXECUTOR,
) -> Prediction:
    """Predict one training step of `gpt` under `plan` on `machine`.

    Without a `placement` ranks fill node after node. Without `fold` every layer is lowered and
    every micro-batch simulated, to the same answer; `timeline` adds the spans of the whole step,
    one rank of each class. `op_seconds` has measured times by signature
    (`workload/lowering/distinct.py`) in place of the machine's own costs, `stack` says what the
    software makes of the plan.
    """
    check_slots(plan)
    stack.check(plan, gpt)
    kernels = stack.kernels(gpt, plan, machine)
    fabric = fabric_of(machine, plan.grid.ranks, placement)
    costs = op_costs(plan, machine, fabric.ranks_per_node, op_seconds, kernels)
    simulated = partial(_simulated, plan, costs, fabric, fold, kernels.behaviour)
    forms = plan_forms(gpt, plan, costs)
    step, load = step_and_load(gpt, plan, partial(simulated, forms))
    prediction = replace(_prediction(gpt, plan, machine, step, stack), load=load)
    if forms:
        plain = simulated(PLAIN, gpt) if is_tuned(forms) else step
        prediction = replace(prediction, tuning=_tuning(forms, plain, step))
    if timeline:
        check_timeline(plan, step)
        return replace(
            prediction, timeline=_timeline(gpt, plan, costs, fabric, forms, kernels.behaviour)
        )
    return prediction


def _simulated(
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    fold: bool,
    behaviour: StackBehaviour,
    forms: Forms,
    gpt: GPT,
) -> StepResult:
    how: dict[str, Any] = {"forms": forms, "behaviour": behaviour}
    try:
        if plan.pp > 1:
            return simulate_pipeline(gpt, plan, costs, fabric, **how)
        return simulate_step(gpt, plan, costs, fabric, fold=fold, **how)
    except OverflowError as error:
        what = f"mbs={plan.mbs} makes buffers of more bytes than 63 bits hold"
        raise PlanCannotRunError(f"{what}; take a smaller one") from error


def op_costs(
    plan: Plan,
    machine: Machine,
    ranks_per_node: int,
    op_seconds: Mapping[str, float] | None,
    kernels: Kernels,
) -> ComputeCosts:
    """The costs of a plan's compute ops, as `predict` is told of them."""
    check_measured(machine, kernels, op_seconds, plan.training.recipe)
    if op_seconds is None and kernels.tabled:
        return PublishedCosts(machine, plan.grid.ranks, kernels)
    if op_seconds is None:
        return compute_costs(machine, ranks_per_node, plan.grid.ranks, kernels)
    if plan.training.matmul_forms == "tuned":
        raise PlanCannotRunError(
            "matmul_forms=tuned compares forms, and measured costs know the plan's own only; "
            "use the times of a calibrated machine file"
        )
    return MeasuredCosts(op_seconds, machine.node.host.bytes_per_s)


def forms_on(gpt: GPT, plan: Plan, machine: Machine) -> Forms:
    """The matmul forms that a plan which tunes them has on a machine; none for any other plan."""
    fabric = fabric_of(machine, plan.grid.ranks)
    return plan_forms(gpt, plan, compute_costs(machine, fabric.ranks_per_node, plan.grid.ranks))


def plan_forms(gpt: GPT, plan: Plan, costs: ComputeCosts) -> Forms:
    """The matmul forms of a plan that tunes them, with these costs; none for any other plan."""
    return fastest_forms(gpt, plan, costs) if plan.training.matmul_forms == "tuned" else PLAIN


def _tuning(forms: Forms, plain: StepResult, tuned: StepResult) -> Tuning:
    compute = plain.parts_ticks["compute"] - tuned.parts_ticks["compute"]
    step = sum(plain.parts_ticks.values()) - sum(tuned.parts_ticks.values())
    return Tuning(forms, to_seconds(compute), to_seconds(step))


def _timeline(
    gpt: GPT,
    plan: Plan,
    costs: ComputeCosts,
    fabric: Fabric,
    forms: Forms,
    behaviour: StackBehaviour,
) -> Timeline:
    stages = lower_stages(gpt, plan, forms, behaviour)
    return simulate_timeline(stages, costs, fabric)


def _prediction(
    gpt: GPT, plan: Plan, machine: Machine, step: StepResult, stack: Stack
) -> Prediction:
    ticks = sum(step.parts_ticks.values())
    if not ticks:
        raise PlanCannotRunError(
            f"a step of {gpt.name} takes no picosecond on {machine.name}: its rates are too high"
        )
    step_s = to_seconds(ticks)
    device_s = step_s * plan.grid.ranks
    parts_s = {key: to_seconds(part) for key, part in step.parts_ticks.items()}
    busy_s = parts_s["compute"] + parts_s["optimizer"]
    # Places that a capacity leaves empty are computed, but are not the model's.
    model_flops = step.model_flops - empty_flops(gpt, plan)
    return Prediction(
        gpt=gpt,
        plan=plan,
        machine=machine.name,
        breakdown_s=parts_s,
        step_s=step_s,
        model_flops_per_s_per_device=model_flops / device_s,
        hardware_flops_per_s_per_device=step.hardware_flops / device_s,
        peak_flops_per_s=peak_flops_per_s(machine, plan.training.precision),
        memory=memory_of(
            step, machine, stack, ranks=plan.grid.ranks, experts=bool(gpt.moe.experts)
        ),
        ops=step.ops,
        comm_bytes=step.comm_bytes,
        cost=cost_of(machine, plan.grid.ranks, step_s=step_s, busy_s=busy_s),
        stack=stack,
        device=machine.device.known_as,
    )
