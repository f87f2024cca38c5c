"""What to change about a plan that does not fit into a device's memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from simgpt import tables
from workload.recipes.table import NO_RECIPE
from workload.splits.context import LONG

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.search import Progress, SearchProblem
    from topologies.machine import Machine
    from workload.gpt import GPT
    from workload.plan import Plan

Change = dict[str, Any]
Predicted = Callable[["Plan"], "Prediction"]
GRID = {"z", "expert", "context"}  # whose changes place ranks otherwise


def does_not_fit(prediction: Prediction) -> str:
    """By how much a plan misses the device's memory."""
    return f"does not fit by {tables.gib(_over(prediction))} per device"


def _over(prediction: Prediction) -> int:
    return prediction.memory.peak_bytes - prediction.memory.capacity_bytes


def what_fits(prediction: Prediction, machine: Machine, predicted: Predicted | None = None) -> str:
    """The same, and which change of the plan is enough, or else which are together; with plain
    matmul forms, as the memory of tuned ones follows from times. With `predicted`, the prediction
    of another plan, each change is said with its step's time, the fastest first."""
    gpt, plan = prediction.gpt, prediction.plan
    predicted = predicted and cache(predicted)
    plain = {} if plan.matmul_forms == "plain" else {"matmul_forms": "plain"}
    levers = [
        [change | plain for change in lever if _runs(prediction, change)]
        for lever in (_recomputes(plan), *_levers(gpt, plan), _contexts(gpt, plan))
    ]
    tried = [lever for lever in levers if lever and _may_be_enough(prediction, lever[-1])]
    enough = [each for lever in tried for each in _enough(prediction, machine, lever, predicted)]
    if enough:
        ranked = ", or ".join(_ranked(prediction, enough, predicted))
        return f"{does_not_fit(prediction)}; it fits with {ranked}"
    if together := _together(prediction, [lever for lever in levers if lever], predicted):
        return f"{does_not_fit(prediction)}; it fits with {together}"
    split, option = (", context", " --split-sequences") if gpt.sequence >= LONG else ("", "")
    return (
        f"{does_not_fit(prediction)}, and no recomputation, sharding{split} or smaller micro-batch "
        f"is enough; take more devices, or let `simgpt search{option}` split the model another way"
    )


def _enough(
    prediction: Prediction,
    machine: Machine,
    lever: Sequence[Change],
    predicted: Predicted | None,
) -> list[Change]:
    """The mildest changes of a kind that are enough, if any is."""
    from simulator.explain.enough_recomputation import EnoughRecomputation

    fits = partial(_fits, prediction)
    if "recompute" in lever[0]:
        return EnoughRecomputation(prediction, machine, lever[-1], predicted).changes()
    if "context" in lever[0]:
        return _fewest_ranks(prediction, lever)
    return [lever[bisect_left(lever, True, key=fits)]] if fits(lever[-1]) else []


def _fewest_ranks(prediction: Prediction, lever: Sequence[Change]) -> list[Change]:
    """The first of some changes of context that is enough, looked for from where activations
    that shrink alike would leave room."""
    fits, memory = partial(_fits, prediction), prediction.memory
    over, before = _over(prediction), prediction.plan.context
    shares = [before / change["context"] for change in lever]
    likely = (at for at, s in enumerate(shares) if memory.parts["activations"] * (1 - s) >= over)
    at = next(likely, len(lever) - 1)
    if not fits(lever[at]):
        return next(([each] for each in lever[at + 1 :] if fits(each)), [])
    while at > 0 and fits(lever[at - 1]):
        at -= 1
    return [lever[at]]


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


def _together(
    prediction: Prediction, levers: Sequence[Sequence[Change]], predicted: Predicted | None
) -> str:
    """Several changes at once in words, if they are enough: on the ranks as they are each as mild
    as the others allow, or else all with the fewest ranks of context."""
    own = [lever for lever in levers if not GRID.intersection(lever[-1])]
    every: Change = {}
    for lever in own:
        every |= lever[-1]
    if _fits(prediction, every):
        return _at_once(prediction, _mildest(prediction, own, every), predicted)
    contexts = [every | change for lever in levers for change in lever if "context" in change]
    fits = partial(_fits, prediction)
    if not contexts or not fits(contexts[-1]):
        return ""
    return _at_once(prediction, contexts[bisect_left(contexts, True, key=fits)], predicted)


def _mildest(prediction: Prediction, levers: Sequence[Sequence[Change]], every: Change) -> Change:
    """Of changes that are enough together each in turn as mild as leaves them enough, or left out:
    recomputation first, which takes most time."""
    fits = partial(_fits, prediction)
    for lever in levers:
        own = lever[-1].keys() - {"matmul_forms"}
        others = {key: value for key, value in every.items() if key not in own}
        ways = [others, *(others | change for change in lever)]
        every = ways[bisect_left(ways, True, key=fits)]
    return every


def _at_once(prediction: Prediction, every: Change, predicted: Predicted | None) -> str:
    """Some changes together in words, if they are enough."""
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


def _recomputes(plan: Plan) -> list[Change]:
    """The strongest recomputation, if there is a stronger one than the plan's."""
    return [{"recompute": "full"}] if plan.recompute != "full" else []


def _levers(gpt: GPT, plan: Plan) -> list[list[Change]]:
    """What else lessens a plan's memory, each from the mildest change to the strongest."""
    halves = [plan.micro_batch >> n for n in range(1, plan.micro_batch.bit_length())]
    return [
        [{"micro_batch": size} for size in halves if plan.micro_batch % size == 0],
        [{"zero": zero} for zero in range(plan.zero + 1, 4) if plan.data * plan.context > 1],
        [{"expert": plan.expert << n} for n in range(1, (gpt.experts // plan.expert).bit_length())],
        [
            {"z": plan.z << n, "data": plan.data >> n}
            for n in range(1, plan.data.bit_length())
            if plan.data % (1 << n) == 0
        ],
    ]


def _contexts(gpt: GPT, plan: Plan) -> list[Change]:
    """Long sequences split over ever more of the ranks that have whole ones."""
    if gpt.sequence < LONG:
        return []
    more = [n for n in range(2, plan.data + 1) if plan.data % n == 0]
    return [{"context": plan.context * n, "data": plan.data // n} for n in more]


def _may_be_enough(prediction: Prediction, change: Change) -> bool:
    """Whether what a change leaves as it is leaves room: states that are there all the time, where
    less is recomputed, a micro-batch is smaller or a sequence is split; what the backward pass
    needs, where ZeRO, z or ranks of experts shard states further, each rank having as many rows as
    before. In a recipe's copies those have room for each expert of a rank besides, which becomes
    less."""
    memory, room = prediction.memory, prediction.memory.capacity_bytes
    if not {"recompute", "micro_batch", "context"}.isdisjoint(change):
        return memory.resident_bytes <= room
    pads = "expert" in change and prediction.plan.recipe != NO_RECIPE
    return pads or memory.parts["activations"] <= room


def _timed_words(change: Change, step_s: float, end: str = "") -> str:
    return f"{_words(change)}{end} ({tables.seconds(step_s)} a step)"


def _words(change: Change) -> str:
    return ",".join(f"{key}={value}" for key, value in change.items())


def _runs(prediction: Prediction, change: Change) -> bool:
    from simulator.explain.changed_plan import can_run

    return can_run(prediction, change)


def _fits(prediction: Prediction, change: Change) -> bool:
    from simulator.explain.changed_plan import fits

    return fits(prediction, change)


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
