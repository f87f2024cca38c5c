"""What to change about a plan that does not fit into a device's memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from simgpt import tables
from workload.plan import text_of
from workload.splits.context import LONG

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.search import Progress, SearchProblem
    from topologies.machine import Machine
    from workload.plan import Plan

Change = dict[str, Any]
Predicted = Callable[["Plan"], "Prediction"]
TOGETHER = {"recompute", "mbs", "zero", "sp", "matmul_forms"}
BOTH_ENDS = {"ep", "tp"}  # of which the strongest may be the fastest
PREDICTED, NAMED = 12, 5  # changes that are enough: how many are timed, and said


def does_not_fit(prediction: Prediction) -> str:
    """By how much a plan misses the largest peak that fits, or how likely one fits that is
    tight."""
    memory, over = prediction.memory, tables.gib(_over(prediction))
    if memory.fits:
        return f"is {memory.words}, and with {over} less per device it would be sure to"
    return f"{memory.verdict} by {over} per device"


def _over(prediction: Prediction) -> int:
    return -prediction.memory.spare_bytes


def what_fits(prediction: Prediction, machine: Machine, predicted: Predicted | None = None) -> str:
    """Say by how much a plan does not fit (`does_not_fit`), and which change of the plan is enough,
    or else which are together; with plain matmul forms, as the memory of tuned ones follows from
    times. With `predicted`, the prediction of another plan, each change is said with its step's
    time, the fastest first."""
    from simulator.explain.memory_levers import levers

    gpt, plan = prediction.gpt, prediction.plan
    predicted = predicted and cache(predicted)
    plain = {} if plan.training.matmul_forms == "plain" else {"matmul_forms": "plain"}
    every = [_recomputes(plan), *levers(gpt, plan, prediction.stack)]
    runs = ([change | plain for change in lever if _runs(prediction, change)] for lever in every)
    can = [lever for lever in runs if lever]
    tried = [lever for lever in can if _may_be_enough(prediction, lever[-1])]
    enough = [each for lever in tried for each in _enough(prediction, machine, lever, predicted)]
    if enough:
        ranked = ", or ".join(_ranked(prediction, enough[:PREDICTED], predicted)[:NAMED])
        return f"{does_not_fit(prediction)}; it fits with {ranked}"
    if together := _together(prediction, can, predicted):
        return f"{does_not_fit(prediction)}; it fits with {together}"
    split = ", context" if gpt.sequence >= LONG else ""
    return (
        f"{does_not_fit(prediction)}, and no change of one key is enough, nor recomputation, "
        f"sharding{split} and a smaller micro-batch together; take more devices, or let "
        "`simgpt search` split the model another way"
    )


def _enough(
    prediction: Prediction,
    machine: Machine,
    lever: Sequence[Change],
    predicted: Predicted | None,
) -> list[Change]:
    """The mildest changes of a kind that are enough, and where that may be faster the strongest."""
    from simulator.explain.enough_recomputation import EnoughRecomputation

    fits = partial(_fits, prediction)
    if "recompute" in lever[0]:
        return EnoughRecomputation(prediction, machine, lever[-1], predicted).changes()
    if "cp" in lever[0]:
        return _fewest_ranks(prediction, lever)
    if not fits(lever[-1]):
        return []
    at = bisect_left(lever, True, key=fits)
    mildest = lever[at]
    if predicted and mildest.keys() - {"matmul_forms"} == {"zero"}:
        return list(lever[at:])  # what a stack overlaps follows the stage
    both = BOTH_ENDS.intersection(mildest) and mildest != lever[-1]
    return [mildest, lever[-1]] if both else [mildest]


def _fewest_ranks(prediction: Prediction, lever: Sequence[Change]) -> list[Change]:
    """The first of some changes of context that is enough, looked for from where activations
    that shrink alike would leave room."""
    fits, memory = partial(_fits, prediction), prediction.memory
    over, before = _over(prediction), prediction.plan.cp
    shares = [before / change["cp"] for change in lever]
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
    found = [(predicted(_changed(prediction, change)), change) for change in changes]
    timed = [(after.step_s, change) for after, change in found if after.memory.is_sure]
    timed.sort(key=lambda each: each[0])
    return [_timed_words(change, time_s) for time_s, change in timed]


def _together(
    prediction: Prediction, levers: Sequence[Sequence[Change]], predicted: Predicted | None
) -> str:
    """Several changes at once in words, if they are enough: on the ranks as they are each as mild
    as the others allow, or else all with the fewest ranks of context."""
    own = [lever for lever in levers if TOGETHER.issuperset(lever[-1])]
    own.sort(key=lambda lever: "sp" in lever[-1])  # last, as it costs no time
    every: Change = {}
    for lever in own:
        every |= lever[-1]
    if _fits(prediction, every):
        return _at_once(prediction, _mildest(prediction, own, every), predicted)
    contexts = [every | change for lever in levers for change in lever if "cp" in change]
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
    changed = predicted(_changed(prediction, every))
    return _timed_words(every, changed.step_s, " together") if changed.memory.is_sure else ""


def starved(plan: Plan) -> str:
    """What to say of a pipeline with so few micro-batches that its stages mostly wait."""
    if plan.micro_batches >= plan.pp:
        return ""
    few = tables.several(plan.micro_batches, "micro-batch")
    more = "smaller mbs" if plan.mbs > 1 else "larger batch"
    return f"{few} for {plan.pp} stages, which mostly wait; a {more} gives more"


def _recomputes(plan: Plan) -> list[Change]:
    """The strongest recomputation, if there is a stronger one than the plan's."""
    return [{"recompute": "full"}] if plan.training.recompute != "full" else []


def _may_be_enough(prediction: Prediction, change: Change) -> bool:
    """Whether what a change leaves as it is leaves room."""
    from simulator.explain.memory_levers import least_bytes

    memory = prediction.memory
    return least_bytes(memory, prediction.plan, change) <= memory.sure_bytes


def _timed_words(change: Change, step_s: float, end: str = "") -> str:
    return f"{_words(change)}{end} ({tables.seconds(step_s)} a step)"


def _words(change: Change) -> str:
    return ",".join(f"{key}={text_of(value)}" for key, value in change.items())


def _changed(prediction: Prediction, change: Change) -> Plan:
    from simulator.explain.changed_plan import changed

    return changed(prediction, change)


def _runs(prediction: Prediction, change: Change) -> bool:
    from simulator.explain.changed_plan import can_run

    return can_run(prediction, change)


def _fits(prediction: Prediction, change: Change) -> bool:
    from simulator.explain.changed_plan import fits

    return fits(prediction, change)


def none_fits(problem: SearchProblem, machine: Machine, state: Progress) -> str:
    """By how much every plan misses the device's memory, and on how many devices some may fit."""
    from simulator.search.enough_devices import enough_devices

    over = state.least_bytes - problem.room_bytes(machine)
    if over <= 0:
        return ""
    devices = enough_devices(problem, machine)
    enough = "" if devices is None else f"; on {devices:,} devices one may fit"
    return f", each misses the device's memory by {tables.gib(over)} or more{enough}"
