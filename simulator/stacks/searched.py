"""Which plans of a stack are searched, and kernels that bound those of each of them from below.

What a stack always does is kept: its overlaps, its attention and the data type of its gradients,
unless the user fixes another; overlaps of one stage of ZeRO have nothing to move in plans of
another. What it can do at all is searched: its axes, schedules and stages of
ZeRO, recomputation, sequence parallelism, micro-batches and rank orders.

Why bounds hold under a stack: they come from the same programs and the same behaviour, timed by the
same kernels. What they leave out only lengthens a step: the ops around messages of which each rank
sends a part, and all copies of experts' rows, where the stack's kernels that send these make fewer,
of plans that split experts. Where a pass depends on the plan, as the fused softmax does, the bound
has its fastest form. `unbounded` says of which stacks no bounds are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulator.costs.kernels import PLAIN_KERNELS, Kernels
from simulator.stacks.effects import EFFECTIVE
from simulator.stacks.stack import EXECUTOR, Stack
from topologies.machine import Machine
from workload.errors import PlanCannotRunError
from workload.exchange.kernels import SORTS, WITHIN
from workload.gpt import GPT
from workload.grid import AXES
from workload.lowering import lower
from workload.op import STEP
from workload.overlaps import OVERLAPS
from workload.plan import Plan
from workload.recipes.table import FP8, NO_RECIPE
from workload.recomputation.parts import FULL, NONE, SELECTIVE

KEPT = ("overlap", "attention", "gradients")
TRAINED = "bf16"
UNEVEN = ("ends_as_layers", "stage_layers")
ONE = GPT.of(name="one", layers=1, hidden=64, heads=2, ffn=64, sequence=64, vocab=64)
COMMUNICATES = ("all_reduce", "reduce_scatter")


def kept(stack: Stack, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of all plans of a stack that are searched, given those that the user fixes."""
    if "recompute" in fixed:
        fixed = {**fixed, "recompute": stack.recompute(str(fixed["recompute"]))}
    defaults = stack.plan_defaults(1, fixed)
    own = {key: defaults[key] for key in KEPT if key in defaults}
    if "overlap" in own:
        own["overlap"] = _overlaps(stack, fixed)
    if str(fixed.get("precision", TRAINED)) != TRAINED:
        own.pop("gradients", None)
    lacking = {axis: 1 for axis in AXES if axis not in stack.can["axes"]}
    for axis in lacking:
        if fixed.get(axis, 1) != 1:
            sizes: dict[str, Any] = {axis: 2}
            stack.check(Plan.of(batch=2, mbs=1, **sizes))
    for key, value in fixed.items():
        if all(fixed.get(axis, 2) != 1 for axis in EFFECTIVE.get(key, {})):
            stack.check_value(key, value)
    wide = [axis for axis in stack.can["axes"] if fixed.get(axis, 2) > 1]
    if "order" in fixed and (why := stack.runs.order_refusal(fixed["order"], wide)):
        raise PlanCannotRunError(why)
    return {**lacking, **own, **fixed}


def _overlaps(stack: Stack, fixed: Mapping[str, Any]) -> tuple[str, ...]:
    """All that the stack overlaps in plans with any stage of ZeRO that is not ruled out."""
    zeros = (fixed["zero"],) if "zero" in fixed else stack.can["zero"]
    of_each = (stack.plan_defaults(1, {**fixed, "zero": zero}) for zero in zeros)
    named = {switch for keys in of_each for switch in keys.get("overlap", ())}
    return tuple(switch for switch in OVERLAPS if switch in named)


def overlap_of(
    stack: Stack, searched: tuple[str, ...], shape: Mapping[str, Any]
) -> tuple[str, ...]:
    """What a plan of a search overlaps whose plans have these overlaps in common: where those are
    the stack's own for all stages of ZeRO, what it overlaps with the plan's stage."""
    if {*_overlaps(stack, {})} != {*searched}:
        return searched
    own = stack.plan_defaults(1, {"zero": int(shape["zero"])}).get("overlap", ())
    return tuple(switch for switch in searched if switch in own)


def allowed(stack: Stack) -> dict[str, tuple[Any, ...]]:
    """The values of searched fields that the stack can run, where it cannot run all."""
    found = {"zero": tuple(stack.can["zero"]), "schedule": tuple(stack.can["schedules"])}
    if "context_kind" in stack.can:
        found["context_kind"] = tuple(stack.can["context_kind"])
    if stack.blocks:
        found["vpp"] = (1,)
        found["schedule"] = ("1f1b",)
    if stack.recompute(SELECTIVE) != SELECTIVE:
        found["recompute"] = (NONE, stack.recompute(SELECTIVE), FULL)
    return found


def fastest_kernels(stack: Stack, gpt: GPT, fixed: Mapping[str, Any], machine: Machine) -> Kernels:
    """Kernels no slower than those of the stack for any plan with these fields."""
    recipe = str(fixed.get("recipe", NO_RECIPE))
    if stack == EXECUTOR and recipe != FP8:
        return PLAIN_KERNELS
    defaults = stack.plan_defaults(1, fixed)
    gradients = fixed.get("gradients", defaults.get("gradients", "fp32"))
    plan = Plan.of(batch=1, mbs=1, gradients=gradients, recipe=recipe)
    kernels = stack.kernels(gpt, plan, machine)
    softmax = stack.own_kernels.get("softmax")
    attention = fixed.get("attention", defaults.get("attention"))
    if softmax and attention == "unfused":
        fused, steps = softmax["fused"], softmax["steps"]
        least = {key: min(fused.get(key, 1.0), steps.get(key, 1.0)) for key in (*fused, *steps)}
        passes = (*kernels.behaviour.passes, *least.items())
        kernels = replace(kernels, behaviour=replace(kernels.behaviour, passes=passes))
    if stack.kernel_rates(machine) is not None:
        fused = (*kernels.behaviour.fused, *WITHIN, *SORTS)
        kernels = replace(kernels, behaviour=replace(kernels.behaviour, fused=fused))
    return kernels


def unbounded(stack: Stack, gpt: GPT, fixed: Mapping[str, Any], machine: Machine) -> str:
    """Why no bounds are known of a stack's plans with these fields; "" where they are: it splits
    layers unevenly, or changes ops on the parameters of all layers, whose bounds count bytes."""
    if stack == EXECUTOR:
        return ""
    for key in UNEVEN:
        if fixed.get(key, stack.plan_defaults(1, fixed).get(key)):
            return f"{key} of the stack {stack.name}"
    behaviour = fastest_kernels(stack, gpt, fixed, machine).behaviour
    named = {*behaviour.fused, *dict(behaviour.passes), *dict(behaviour.payloads)}
    wrong = sorted(named & _of_step(tuple(stack.can["zero"])))
    return f"{wrong[0]} of the stack {stack.name}" if wrong else ""


def _of_step(zeros: tuple[int, ...]) -> set[str]:
    """Kinds and labels of the ops that follow all slots, with any of these stages of ZeRO."""
    found = set(COMMUNICATES)
    for zero in zeros:
        plan = Plan.of(dp=2, zero=zero, batch=2, mbs=1, overlap=())
        for op in lower(ONE, plan).ops:
            if op.block == STEP:
                found |= {op.kind, op.label}
    return found
