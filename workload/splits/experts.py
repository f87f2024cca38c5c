"""Which ranks hold parts of one expert, which hold different experts, and which hold the same.

Neighbours on x hold parts of an expert's matrices, `expert_tensor` of them; with more of these than
x has ranks, neighbours on context and data do so too. Of the ranks left on x, then on context and
data, `expert` neighbours hold different experts, and all others the same. The tokens of ranks of
context, and with sequence parallelism of x, are further tokens to the experts, so that gradients of
experts are summed over the ranks that hold the same alone.
Source: Megatron-Core's parallel folding (2504.14960), section 3.2, and parallel_state.py, whose
grid of experts has neither context nor x, so that theirs are neighbours on these and data;
torchtitan, parallel_dims.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from workload.errors import NearestError, PlanCannotRunError, PlanError
from workload.grid import axes_of, runs_of_axis
from workload.plan_fields import PlanFields

Axes = tuple[str, ...]
FOLDED = ("tp", "cp", "dp")  # in the order in which ranks are taken
MOST_RANKS = 4096  # of which nearest ones are looked for
IN_V = ("dualpipe-v", "dualpipe")  # schedules of pairs besides 1F1B
WHOLE = ("1f1b", "gpipe")  # those whose backward passes are not split


class Fold(NamedTuple):
    """Of an axis: how many neighbours have parts of one expert, how many such runs hold different
    experts, and how many of these the same."""

    tensor: int
    experts: int
    copies: int


def folded(count: int, *sizes: int) -> tuple[int, ...]:
    """How many neighbours on each of some axes make `count` ranks together: all that there are on
    one before there are any on the next. Where no neighbours make so many ranks, one of these
    numbers does not divide its axis, or they make another number (`fits`).

    >>> folded(2, 4, 2), folded(8, 4, 2), folded(8, 1, 16)
    ((2, 1), (4, 2), (1, 8))
    """
    found = []
    for size in sizes:
        found.append(size if count % size == 0 else count)
        count = count // found[-1]
    return tuple(found)


def folds(plan: PlanFields) -> tuple[Fold, Fold, Fold]:
    """How x, context and data are split for experts."""
    tensor, left = _of_tensor(plan)
    experts = folded(plan.ep, *left)
    x, context, data = (
        Fold(part, each, size // each)
        for part, each, size in zip(tensor, experts, left, strict=True)
    )
    return x, context, data


def _of_tensor(plan: PlanFields) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many neighbours on x, context and data have parts of one expert, and how many runs of
    these there are."""
    if plan.etp in (0, plan.tp):
        return (plan.tp, 1, 1), (1, plan.cp, plan.dp)
    sizes = plan.tp, plan.cp, plan.dp
    tensor = folded(plan.etp, *sizes)
    return tensor, tuple(size // each for size, each in zip(sizes, tensor, strict=True))


def is_folded(plan: PlanFields) -> bool:
    """Whether experts are split over other ranks than other weights are."""
    return plan.ep > 1 or plan.etp not in (0, plan.tp)


def axes_of_tensor(plan: PlanFields) -> Axes:
    """See `Plan.expert_tensor_axes`."""
    if plan.etp in (0, plan.tp):
        return ("tp",)
    return _axes_of(plan, "tensor")


def axes_of_experts(plan: PlanFields) -> Axes:
    """See `Plan.expert_axes`."""
    return _axes_of(plan, "experts") if plan.ep > 1 else ()


def axes_of_copies(plan: PlanFields) -> Axes:
    """See `Plan.expert_copies`."""
    x, context, _ = folds(plan)
    before = [
        _name(axis, fold, "copies")
        for axis, fold in (("tp", x), ("cp", context))
        if fold.copies > 1
    ]
    return *before, "edp"


def runs_of_x(plan: PlanFields) -> tuple[int, ...]:
    """The runs of neighbours into which x falls, as `Grid` has them; none where all its ranks have
    one role."""
    return _runs(folds(plan)[0]) if is_folded(plan) else ()


def runs_of_context(plan: PlanFields) -> tuple[int, ...]:
    """The runs of neighbours into which context falls, likewise."""
    return _runs(folds(plan)[1]) if is_folded(plan) else ()


def runs_of_data(plan: PlanFields) -> dict[str, int]:
    """How many neighbours on data hold parts of the same experts, and how many runs of these hold
    different ones, as `Grid` has it: nothing where experts are split as other weights are."""
    if not is_folded(plan):
        return {}
    fold = folds(plan)[2]
    return {"etp": fold.tensor, "experts": fold.experts}


def _axes_of(plan: PlanFields, role: str) -> Axes:
    """The axes, or their parts, whose ranks differ in one role of a `Fold`, the fastest first."""
    of = {}
    for axis, fold in zip(FOLDED, folds(plan), strict=True):
        if getattr(fold, role) > 1:
            of[axis] = _name(axis, fold, role)
    return tuple(of[axis] for axis in axes_of(plan.order) if axis in of)


def _name(axis: str, fold: Fold, role: str) -> str:
    if axis == "dp":
        return {"tensor": "etp", "experts": "ep", "copies": "edp"}[role]
    wide = [name for name, size in fold._asdict().items() if size > 1]
    if len(wide) == 1:
        return axis
    return runs_of_axis(axis, _runs(fold))[wide.index(role)]


def _runs(fold: Fold) -> tuple[int, ...]:
    """The runs of neighbours into which an axis falls; none where all have one role."""
    return tuple(size for size in fold if size > 1)[:-1]


def check(plan: PlanFields) -> None:
    """Refuse what splits experts in no way that there is, or makes no sense beside the rest."""
    sizes = plan.tp, plan.cp, plan.dp
    tensor, left = _of_tensor(plan)
    if not fits(plan.etp or plan.tp, sizes, tensor):
        raise _refusal(plan, "etp", sizes)
    if not fits(plan.ep, left, folded(plan.ep, *left)):
        spread = fits(plan.ep, sizes, folded(plan.ep, *sizes))
        other = "etp=1" if plan.sp or plan.tp == 1 else "etp=1 with sp=true"
        raise _refusal(plan, "ep", left, other if spread else "")
    if is_folded(plan):
        _check_folded(plan)
    if why := _exchanges_refusal(plan):
        raise PlanError(why)


def _exchanges_refusal(plan: PlanFields) -> str:
    """Why all-to-alls cannot run beside what a plan's `overlap` names; "" where they can."""
    chunks = plan.pipeline.schedule == "1f1b" and (plan.pp == 1) == (plan.vpp == 1)
    if "a2a" in plan.training.overlap and (
        plan.ep == 1 or not (chunks or plan.pipeline.schedule in IN_V)
    ):
        return (
            "overlap=a2a lets two micro-batches of one stage take turns at experts' all-to-alls: "
            "it needs ep > 1 and schedule=1f1b, with vpp > 1 if pp > 1, or "
            f"schedule=dualpipe-v or dualpipe, not ep={plan.ep}, pp={plan.pp}, "
            f"vpp={plan.vpp} and schedule={plan.pipeline.schedule}"
        )
    if "wgrad" in plan.training.overlap and (plan.ep == 1 or plan.pipeline.schedule not in WHOLE):
        return (
            "overlap=wgrad puts gradients of weights off until the next all-to-all of experts: it "
            "needs ep > 1 and backward passes that are not split, "
            f"schedule={' or '.join(WHOLE)}, not ep={plan.ep} and schedule={plan.pipeline.schedule}"
        )
    return ""


def _check_folded(plan: PlanFields) -> None:
    if plan.etp not in (0, plan.tp) and plan.tp > 1 and not plan.sp:
        raise PlanError(f"etp={plan.etp} beside tp={plan.tp} needs sp=true")
    data = folds(plan)[-1]
    run = data.tensor * data.experts
    if plan.shard % run:
        raise PlanCannotRunError(
            f"shard={plan.shard} is not a multiple of the {run} neighbours on dp that split experts"
        )


def fits(count: int, sizes: Sequence[int], parts: Sequence[int]) -> bool:
    """Whether parts of axes of these sizes divide them, and make so many ranks together."""
    whole = all(size % part == 0 for size, part in zip(sizes, parts, strict=True))
    return whole and prod(parts) == count


def _refusal(plan: PlanFields, key: str, left: Sequence[int], instead: str = "") -> NearestError:
    """Why so many ranks cannot be taken from what is left of x, context and data, and the numbers
    that can."""
    named = []
    for axis, size in zip(FOLDED, left, strict=True):
        of = plan.value(axis)
        named.append((axis if size == of else f"{axis}/{of // size}", size))
    *before, (data, count) = [each for each in named if each[1] > 1 or each[0].startswith("dp")]
    times = "".join(f" times {axis}={size}" for axis, size in reversed(before))
    inner = " and then ".join(axis for axis, _ in before)
    them = "them" if len(before) > 1 else "it"
    or_else = f", or neither divides {inner} nor is a multiple of {them}" if before else ""
    ranks = plan.value(key)
    why = f"{key}={ranks} does not divide {data}={count}{times}{or_else}"
    return NearestError(why, key, ranks, _possible(left), instead=instead)


def _possible(sizes: Sequence[int]) -> set[int]:
    """How many ranks can be taken from axes of these sizes."""
    found, inside = set[int](), 1
    for size in sizes:
        found |= {inside * each for each in _divisors(size)}
        inside *= size
    return found


def _divisors(count: int) -> list[int]:
    return [each for each in range(1, min(count, MOST_RANKS) + 1) if count % each == 0]
