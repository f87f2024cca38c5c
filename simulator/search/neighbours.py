"""Plans one change away from a plan, over all that a prediction knows of how a step is run.

A change moves a factor from one axis to another, or gives a field another value: the micro-batch,
ZeRO, recomputation, the schedule, overlaps, the rank order, how experts or sequences are split.
What follows from it follows: a micro-batch divides what a rank then has, layers are spread evenly
over the chunks, and what the stack gave for the old value it gives for the new one. What is trained
(data types, recipes, the update rule, the loss) and where states live stays as it is.

Which plans a stack and a model can run is asked of these: nothing here knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations, permutations
from math import gcd, prod
from typing import Any

from simulator.search.problem import SearchProblem
from simulator.stacks.effects import in_effect, same_order
from simulator.stacks.stack import EXECUTOR
from simulator.stacks.stage_split import SPLIT
from simulator.stacks.where import following
from topologies.errors import SimgptError
from workload.exchange.table import DISPATCHERS, USUAL
from workload.gpt import GPT
from workload.grid import AXES, SHARDS, axes_of, order_of
from workload.grid import USUAL as USUAL_ORDER
from workload.lowering import check
from workload.models.moe import layers_with_experts
from workload.overlaps import EVERY, OVERLAPS
from workload.pipeline.schedule import TWO_WAY, V_SHAPED, ways
from workload.plan import Plan
from workload.recomputation.parts import (
    CORE,
    FULL,
    NONE,
    PARTS,
    SELECTIVE,
    WORDS,
    model_refusal,
    parts_of,
)
from workload.splits.context import LONG
from workload.splits.plan_values import CHOICES
from workload.stages import nearly_even

Change = Mapping[str, Any]
Changes = Iterable[Change]
PRIMES = (2, 3, 5, 7)  # of the factors that go from one axis to another
WHOLE = 16  # ranks of an axis, all of which may go to another at once
HSDP = (8, 16, 32, 64)  # ranks over which ZeRO may shard, in copies over the rest
HEADS = (2, 4, 8)  # neighbours on cp that may trade rows for heads
UNEVEN = ("stage_layers", "ends_as_layers")
ENDS = 2  # stages that may hold an end of the model and no layer: the embedding, the output head


def neighbours(problem: SearchProblem, plan: Plan, kind: str) -> Iterator[Plan]:
    """The plans one change of a kind of KINDS away that the stack runs, and that keep what is
    fixed."""
    seen = {plan}
    for change in KINDS[kind](problem, plan):
        other = legal(problem, plan, change)
        if other is not None and other not in seen:
            seen.add(other)
            yield other


def savers(problem: SearchProblem, plan: Plan) -> Iterator[tuple[Change, Plan]]:
    """The changes that need less memory in the grid of a plan, and the plans: as many parts of
    layers again as can run so, since a walk finds from there which of them are needed; smaller
    micro-batches; more of the states split; and whole layers again."""
    parts = [part for part in _most_parts(problem.gpt) if part != CORE]
    more = (
        []
        if _whole_layers(problem.gpt, plan)
        else [_text({*parts, *parts_of(plan.training.recompute)})]
    )
    changes: list[Change] = [{"recompute": each} for each in more]
    changes += [{"mbs": plan.mbs // factor} for factor in _factors(plan.mbs)[:1]]
    changes += [{"zero": zero} for zero in range(plan.zero + 1, 4)]
    changes += [{"recompute": FULL}]
    for change in changes:
        if (other := legal(problem, plan, change)) not in (None, plan):
            yield change, other


def spenders(problem: SearchProblem, plan: Plan) -> Iterator[Plan]:
    """The plans in the grid of one that need more memory and may be faster."""
    changes: list[Change] = [{"recompute": each} for each in _recomputed_less(problem.gpt, plan)]
    changes += [{"mbs": plan.mbs * 2}, *({"zero": zero} for zero in range(plan.zero))]
    found = (legal(problem, plan, change) for change in changes)
    return (other for other in found if other is not None)


def legal(problem: SearchProblem, plan: Plan, change: Change) -> Plan | None:
    """The plan with a change and with what follows from it, if the stack runs that and it keeps
    what is fixed; where the experts' split cannot stay, the nearest that can be run."""
    fixed = problem.fixed
    if any(key in fixed and fixed[key] != value for key, value in change.items()):
        return None
    for all_changes in _with_experts(plan, change):
        try:
            other = _followed(problem, plan, all_changes)
            gpt = problem.stack.model(problem.gpt, other.tp)
            problem.stack.check(other, gpt)
            check(gpt, other)
        except SimgptError:
            continue
        return other if all(_keeps(other, key, fixed[key]) for key in fixed) else None
    return None


def _with_experts(plan: Plan, change: Change) -> Iterator[Change]:
    yield change
    if plan.ep > 1 and "ep" not in change and not {*AXES}.isdisjoint(change):
        for ranks in (plan.ep * 2, plan.ep // 2, plan.ep * 4, plan.ep // 4, 1):
            yield {**change, "ep": max(ranks, 1)}


def _keeps(plan: Plan, key: str, value: Any) -> bool:
    if key == "order":
        return same_order(plan.order, value, [axis for axis in AXES if plan.value(axis) > 1])
    return bool(plan.value(key) == value)


def _followed(problem: SearchProblem, plan: Plan, change: Change) -> Plan:
    """The plan with a change and with what follows from it."""
    gpt, stack = problem.gpt, problem.stack
    found = {**following(stack.plan, plan, change), **change}

    def of(key: str) -> Any:
        return found.get(key, plan.value(key))

    found["recompute"] = stack.recompute(of("recompute"))
    if of("tp") == 1 or of("y") > 1:
        found["sp"] = False
    elif plan.tp == 1 and stack == EXECUTOR:
        found.setdefault("sp", True)
    if of("dp") * of("cp") == 1:
        found["zero"] = 0
    if of("etp") == of("tp"):
        found["etp"] = 0  # which says the same
    if of("ep") == 1:
        found |= {"dispatcher": USUAL, "fp8_dispatch": False}
    if of("cp") == 1:
        found |= {"context_kind": "ring", "context_heads": 1}
    if same_order(of("order"), USUAL_ORDER, [axis for axis in AXES if of(axis) > 1]):
        found["order"] = USUAL_ORDER
    if of("shard") and (not of("zero") or of("dp") % of("shard")):
        found["shard"] = 0
    cells = prod(of(axis) for axis in SHARDS["sequences"]) * ways(of("schedule"))
    per_rank = plan.batch // cells
    if "mbs" not in change:
        found["mbs"] = gcd(of("mbs"), per_rank) or 1
    if of("pp") == 1:
        found |= {"vpp": 1, "schedule": "1f1b"}
    elif of("schedule") != "1f1b":
        found["vpp"] = 2 if of("schedule") in V_SHAPED else 1
    elif of("vpp") > 1:
        in_turns = per_rank // of("mbs") % of("pp") == 0
        able = vpps(gpt, of("pp")) if in_turns else [1]
        found["vpp"] = max((each for each in able if each <= of("vpp")), default=1)
    if {*UNEVEN}.isdisjoint({*change, *problem.fixed}):
        found |= layers_on_stages(
            problem, of("pp"), of("vpp"), ends_as_layers=plan.pipeline.ends_as_layers
        )
        found |= _as_uneven(gpt, plan, of("pp") * of("vpp"))
    return plan.changed(**found)


def _as_uneven(gpt: GPT, plan: Plan, chunks: int) -> dict[str, Any]:
    """The layers of so many chunks, split as a plan splits them if that is not as even as can
    be."""
    own, before = plan.pipeline.stage_layers, plan.pp * plan.vpp
    if not own or own == nearly_even(gpt.layers, before):
        return {}
    if chunks == before:
        return {"stage_layers": own}
    fewer = fewer_last(gpt.layers, chunks) if own == fewer_last(gpt.layers, before) else ()
    return {"stage_layers": fewer} if fewer else {}


def fewer_last(layers: int, chunks: int) -> tuple[int, ...]:
    """So many layers split over chunks, the last of which, that has the output head, alone has
    fewer; none if there are no such.

    >>> fewer_last(61, 16), fewer_last(32, 4)
    ((4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1), ())
    """
    each = -(-layers // chunks)
    last = layers - each * (chunks - 1)
    return (*(each,) * (chunks - 1), last) if 0 <= last < each else ()


def layers_on_stages(
    problem: SearchProblem, pp: int, vpp: int, *, ends_as_layers: bool = False
) -> dict[str, Any]:
    """How layers lie on stages: as they did with the model's ends counted as layers where these
    divide, else as evenly as they can."""
    layers, chunks = problem.gpt.layers, pp * vpp
    if ends_as_layers and (layers + 2) % chunks == 0:
        return {"ends_as_layers": True, "stage_layers": ()}
    unlike = pp > 1 and vpp == 1 and SPLIT in problem.stack.plan  # even splits must be said
    said = layers % chunks or unlike
    return {"ends_as_layers": False, "stage_layers": nearly_even(layers, chunks) if said else ()}


def vpps(gpt: GPT, pp: int) -> list[int]:
    """The numbers of chunks worth a try on so many stages: those that divide the layers, and of
    those with the same longest chunk the least."""
    most = gpt.layers // pp
    even = {vpp for vpp in range(1, most + 1) if gpt.layers % (pp * vpp) == 0}
    if even and layers_with_experts(gpt) in (0, gpt.layers):
        return sorted(even)
    longest = {-(-gpt.layers // (pp * vpp)): vpp for vpp in range(most, 0, -1)}
    return sorted({*even, *longest.values()})


def _micro_batches(problem: SearchProblem, plan: Plan) -> Changes:
    fewer = [plan.mbs // factor for factor in _factors(plan.mbs)[:1]]
    return ({"mbs": size} for size in (plan.mbs * 2, *fewer, plan.mbs * 4))


def _recomputations(problem: SearchProblem, plan: Plan) -> Changes:
    return ({"recompute": each} for each in _recomputed_less(problem.gpt, plan))


def _axes(problem: SearchProblem, plan: Plan) -> Changes:
    """A factor of one axis to another, or all of it, but no more stages than have something to do;
    with `pp` also the chunks of as many layers as before."""
    able = [axis for axis in AXES if axis in problem.stack.can["axes"]]
    for less, more in permutations(able, 2):
        size = plan.value(less)
        if size == 1 or (more == "cp" and plan.cp == 1 and problem.gpt.sequence < LONG):
            continue
        factors = _factors(size) + ([size] if size <= WHOLE else [])
        for factor in dict.fromkeys(factors):
            change = {less: size // factor, more: plan.value(more) * factor}
            if change.get("pp", 1) > problem.gpt.layers + ENDS:
                continue
            yield change
            if plan.vpp > 1 and change.get("pp", 1) > 1:
                yield {**change, "vpp": max(plan.pp * plan.vpp // change["pp"], 1)}


def _states(problem: SearchProblem, plan: Plan) -> Changes:
    yield from ({"zero": zero} for zero in problem.stack.can["zero"] if zero != plan.zero)
    if plan.tp > 1:
        yield {"sp": not plan.sp}
    if plan.zero == 3:
        yield {"reshard": not plan.reshard}
    if plan.zero:
        sizes = (0, *(size for size in HSDP if size < plan.dp and plan.dp % size == 0))
        yield from ({"shard": size} for size in sizes if size != plan.shard)


def _schedules(problem: SearchProblem, plan: Plan) -> Changes:
    if plan.pp == 1:
        return
    able = vpps(problem.gpt, plan.pp)
    more, less = ([v for v in able if v > plan.vpp], [v for v in able if v < plan.vpp])
    for vpp in dict.fromkeys([*more[:1], *less[-1:], *more[-1:], *less[:1]]):
        yield {"schedule": "1f1b", "vpp": vpp}
    for schedule in problem.stack.can["schedules"]:
        if schedule != plan.pipeline.schedule and schedule not in TWO_WAY:
            yield {"schedule": schedule}
    yield {"ends_as_layers": not plan.pipeline.ends_as_layers, "stage_layers": ()}
    if fewer := fewer_last(problem.gpt.layers, plan.pp * plan.vpp):
        yield {"ends_as_layers": False, "stage_layers": fewer}


def _experts(problem: SearchProblem, plan: Plan) -> Changes:
    if not problem.gpt.moe.experts:
        return
    parts = dict.fromkeys((plan.etp, 0, 1, 2, plan.expert_parts * 2, plan.expert_parts // 2))
    for etp in parts:
        as_many = plan.ep * plan.expert_parts // max(etp or plan.tp, 1)
        ranks = (plan.ep, as_many, plan.ep * 2, plan.ep // 2, plan.ep * 4, plan.ep // 4)
        yield from ({"etp": etp, "ep": ep} for ep in dict.fromkeys(ranks) if ep)


def _dispatchers(problem: SearchProblem, plan: Plan) -> Changes:
    if plan.ep > 1:
        able = problem.several.get("dispatcher", problem.stack.searched_dispatchers)
        yield from ({"dispatcher": each} for each in able if not DISPATCHERS[each].with_places)


def _contexts(problem: SearchProblem, plan: Plan) -> Changes:
    if plan.cp == 1:
        return
    for kind in problem.several.get("context_kind", CHOICES["context_kind"]):
        yield {"context_kind": kind, "context_heads": 1}
    if plan.context.kind == "ring":
        yield from ({"context_heads": heads} for heads in HEADS if heads != plan.context.heads)


def _overlaps(problem: SearchProblem, plan: Plan) -> Changes:
    """One overlap more or less that has an effect; of a stack those alone that it has not always.
    Exchanges that run beside another micro-batch leave none for the experts that all tokens pass.
    """
    for switch in EVERY:
        if problem.stack != EXECUTOR and switch in OVERLAPS and switch != "shared":
            continue
        taken = tuple(each for each in EVERY if (each in plan.training.overlap) != (each == switch))
        alone = tuple(each for each in taken if each != "shared")
        if _differs(problem, plan, taken):
            yield {"overlap": taken}
        if switch in taken and switch not in OVERLAPS and alone != taken:
            yield {"overlap": alone}


def _differs(problem: SearchProblem, plan: Plan, overlap: tuple[str, ...]) -> bool:
    """Whether other overlaps have another effect."""
    how = problem.gpt, problem.stack.messages
    try:
        other = plan.changed(overlap=overlap)
    except SimgptError:
        return False
    return [*in_effect(other, *how)] != [*in_effect(plan, *how)]


def _orders(problem: SearchProblem, plan: Plan) -> Changes:
    axes = axes_of(plan.order)
    wide = [axis for axis in axes if plan.value(axis) > 1]
    if able := problem.stack.can.get("order"):
        orders = (each for each in able if not same_order(each, plan.order, wide))
        return ({"order": each} for each in orders)
    swaps = ({one: two, two: one} for one, two in combinations(wide, 2))
    return ({"order": order_of([swap.get(axis, axis) for axis in axes])} for swap in swaps)


def _recomputed_less(gpt: GPT, plan: Plan) -> list[str]:
    """What runs again in plans that recompute a step less than one."""
    own, count = parts_of(plan.training.recompute), _whole_layers(gpt, plan)
    if count:
        fewer = [n for n in dict.fromkeys((count // 2, count - max(count // 8, 1))) if n]
        parts = [*_most_parts(gpt)]
        alone = [part for part in parts if part != CORE]
        every = [_text(alone), _text(parts), NONE, SELECTIVE, *alone]
        return list(dict.fromkeys([*every, *(f"{FULL}:{n}" for n in fewer)]))
    if plan.training.recompute not in WORDS or own:
        return list(dict.fromkeys([NONE, *(_text({*own} - {part}) for part in own)]))
    return [] if plan.training.recompute == NONE else [NONE, SELECTIVE]


def _whole_layers(gpt: GPT, plan: Plan) -> int:
    """How many layers of a chunk run again whole."""
    word, _, count = plan.training.recompute.partition(":")
    return 0 if word != FULL else int(count) if count else _chunk(gpt, plan)


def _chunk(gpt: GPT, plan: Plan) -> int:
    return max(plan.pipeline.stage_layers, default=max(gpt.layers // (plan.pp * plan.vpp), 1))


def _parts(gpt: GPT) -> list[str]:
    """The parts of layers that a model has."""
    dense = gpt.layers - layers_with_experts(gpt)
    return [part for part in PARTS if not model_refusal(gpt, dense, part)]


def _most_parts(gpt: GPT) -> list[str]:
    """As many parts as can run again together, those first that come first in PARTS."""
    dense, found = gpt.layers - layers_with_experts(gpt), list[str]()
    for part in PARTS:
        if not model_refusal(gpt, dense, "+".join([*found, part])):
            found.append(part)
    return found


def _text(parts: Iterable[str]) -> str:
    named = [part for part in PARTS if part in {*parts}]
    return SELECTIVE if named == [CORE] else "+".join(named) or NONE


def _factors(size: int) -> list[int]:
    """The small primes that divide a size, or all of it where none does; of 1 nothing."""
    return [p for p in PRIMES if size % p == 0] or ([size] if size > 1 else [])


KINDS: Mapping[str, Callable[[SearchProblem, Plan], Changes]] = {
    "micro-batch": _micro_batches,
    "recomputation": _recomputations,
    "axes": _axes,
    "schedule": _schedules,
    "overlap": _overlaps,
    "dispatcher": _dispatchers,
    "context": _contexts,
    "states": _states,
    "experts": _experts,
    "order": _orders,
}
