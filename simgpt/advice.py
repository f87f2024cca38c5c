"""What to change about a plan that does not fit into a device's memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from simgpt import tables
from topologies.errors import SimgptError
from workload.recipes.table import NO_RECIPE

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.search import Progress, SearchProblem
    from topologies.machine import Machine
    from workload.gpt import GPT
    from workload.plan import Plan

Change = dict[str, Any]
Predicted = Callable[["Plan"], "Prediction"]


def does_not_fit(prediction: Prediction) -> str:
    """By how much a plan misses the device's memory."""
    memory = prediction.memory
    return f"does not fit by {tables.gib(memory.peak_bytes - memory.capacity_bytes)} per device"


def what_fits(prediction: Prediction, predicted: Predicted | None = None) -> str:
    """The same, and which change of the plan is enough, or else which are together; with plain
    matmul forms, as the memory of tuned ones follows from times. With `predicted`, the prediction
    of another plan, each change is said with its step's time, the fastest first."""
    plain = {} if prediction.plan.matmul_forms == "plain" else {"matmul_forms": "plain"}
    fits = partial(_fits, prediction)
    levers = [
        [change | plain for change in lever if _runs(prediction, change)]
        for lever in _levers(prediction.gpt, prediction.plan)
    ]
    levers = [lever for lever in levers if lever]
    alone = [lever for lever in levers if _may_be_enough(prediction, lever[-1])]
    enough = [lever[bisect_left(lever, True, key=fits)] for lever in alone if fits(lever[-1])]
    if enough:
        ranked = ", or ".join(_ranked(prediction, enough, predicted))
        return f"{does_not_fit(prediction)}; it fits with {ranked}"
    same_grid = [lever[-1] for lever in levers if not {"z", "expert"}.intersection(lever[-1])]
    every = {key: value for change in same_grid for key, value in change.items()}
    if together := _together(prediction, every, predicted):
        return f"{does_not_fit(prediction)}; it fits with {together}"
    return (
        f"{does_not_fit(prediction)}, and no recomputation, sharding or smaller micro-batch is "
        "enough; take more devices, or let `simgpt search` split the model another way"
    )


def _ranked(
    prediction: Prediction, changes: Sequence[Change], predicted: Predicted | None
) -> list[str]:
    """The changes in words, each with the time of its step, the fastest first; in their order and
    without a time where nothing is predicted."""
    if predicted is None:
        return [_words(change) for change in changes]
    timed = [(predicted(replace(prediction.plan, **change)).step_s, change) for change in changes]
    timed.sort(key=lambda each: each[0])
    return [_timed_words(change, time_s) for time_s, change in timed]


def _together(prediction: Prediction, every: Change, predicted: Predicted | None) -> str:
    """All changes at once in words, if they are enough."""
    words = f"{_words(every)} together"
    if predicted is None or not _runs(prediction, every):
        return words if _fits(prediction, every) else ""
    changed = predicted(replace(prediction.plan, **every))
    return _timed_words(every, changed.step_s, " together") if changed.memory.fits else ""


def starved(plan: Plan) -> str:
    """What to say of a pipeline with so few micro-batches that its stages mostly wait."""
    if plan.micro_batches >= plan.pipe:
        return ""
    few = tables.several(plan.micro_batches, "micro-batch")
    more = "smaller micro_batch" if plan.micro_batch > 1 else "larger batch"
    return f"{few} for {plan.pipe} stages, which mostly wait; a {more} gives more"


def _levers(gpt: GPT, plan: Plan) -> list[list[Change]]:
    """What lessens a plan's memory, each from the mildest change to the strongest."""
    halves = [plan.micro_batch >> n for n in range(1, plan.micro_batch.bit_length())]
    layers = gpt.layers // (plan.pipe * plan.interleave)
    some = [f"full:{1 << n}" for n in range(layers.bit_length()) if 1 << n < layers]
    recomputed = [*(some if plan.recompute == "none" else []), "full"]
    levers: list[list[Change]] = [
        [{"recompute": each} for each in recomputed] if plan.recompute != "full" else [],
        [{"micro_batch": size} for size in halves if plan.micro_batch % size == 0],
        [{"zero": zero} for zero in range(plan.zero + 1, 4) if plan.data * plan.context > 1],
        [{"expert": plan.expert << n} for n in range(1, (gpt.experts // plan.expert).bit_length())],
        [
            {"z": plan.z << n, "data": plan.data >> n}
            for n in range(1, plan.data.bit_length())
            if plan.data % (1 << n) == 0
        ],
    ]
    return levers


def _may_be_enough(prediction: Prediction, change: Change) -> bool:
    """Whether what a change leaves as it is leaves room: states that are there all the time, where
    less is recomputed or a micro-batch is smaller; what the backward pass needs, where ZeRO, z or
    ranks of experts shard states further, each rank having as many rows as before. In a recipe's
    copies those have room for each expert of a rank besides, which becomes less."""
    memory, room = prediction.memory, prediction.memory.capacity_bytes
    if not {"recompute", "micro_batch"}.isdisjoint(change):
        return memory.resident_bytes <= room
    pads = "expert" in change and prediction.plan.recipe != NO_RECIPE
    return pads or memory.parts["activations"] <= room


def _timed_words(change: Change, step_s: float, end: str = "") -> str:
    return f"{_words(change)}{end} ({tables.seconds(step_s)} a step)"


def _words(change: Change) -> str:
    return ",".join(f"{key}={value}" for key, value in change.items())


def _runs(prediction: Prediction, change: Change) -> bool:
    """Whether a plan can be changed so, whatever memory it then needs."""
    from workload.lowering import check

    try:
        plan = replace(prediction.plan, **change)
        prediction.stack.check(plan)
        check(prediction.gpt, plan)
    except SimgptError:
        return False
    return True


def _fits(prediction: Prediction, change: Change) -> bool:
    """Whether a plan can be changed so and then fits."""
    from simulator.explain.nearest_fit import habits_in_memory
    from simulator.search.bounds.peak_memory import plan_bytes

    if not _runs(prediction, change):
        return False
    plan = replace(prediction.plan, **change)
    habits = habits_in_memory(prediction.stack, plan)
    return plan_bytes(prediction.gpt, plan, habits) <= prediction.memory.capacity_bytes


def none_fits(problem: SearchProblem, machine: Machine, state: Progress) -> str:
    """By how much every plan misses the device's memory, whether plans that split sequences may
    fit, and on how many devices some may."""
    from simulator.search.warm_start import enough_devices, split_sequences_may_fit
    from simulator.step_memory import room_for_tensors

    over = state.least_bytes - room_for_tensors(machine, problem.stack)
    if over <= 0:
        return ""
    ways = ["with --split-sequences"] if split_sequences_may_fit(problem, machine) else []
    if (devices := enough_devices(problem, machine)) is not None:
        ways.append(f"on {devices:,} devices")
    enough = f"; {' or '.join(ways)} one may fit" if ways else ""
    return f", each misses the device's memory by {tables.gib(over)} or more{enough}"
