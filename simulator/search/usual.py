"""The usual plans of a model on so many devices, from which a search sets out, and their families.

They are what published runs of like size did (`published_plans.csv`), and what a training engineer
would try first: data parallelism and FSDP, tensor parallelism inside a node, as few pipeline stages
as hold the states of the weights, context parallelism for long sequences, and experts over a node
or several.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from simulator.search.families import family_of
from simulator.search.neighbours import layers_on_stages, vpps
from simulator.search.problem import SearchProblem, divisors
from simulator.stacks.job import job_of
from simulator.stacks.stack import EXECUTOR
from topologies.errors import SimgptError
from topologies.files.reading import shipped_text
from topologies.machine import Machine
from topologies.session import session_cached
from workload.errors import PlanCannotRunError
from workload.lowering import check
from workload.models.moe import expert_weights, layers_with_experts
from workload.overlaps import OVERLAPS
from workload.pipeline.schedule import V_SHAPED
from workload.plan import Plan
from workload.splits.context import LONG

Words = Mapping[str, Any]


class PublishedPlan(NamedTuple):
    """How a published run split a model of so many billions of `parameters` and so many `experts`
    (0: none) over devices."""

    source: str
    stack_family: str
    parameters: float
    experts: int
    sequence: int
    devices: int
    tp: int
    y: int
    z: int
    pp: int
    vpp: int
    cp: int
    ep: int
    etp: int
    zero: int
    mbs: int
    recompute: str
    beside: str  # overlaps that are not on by default, joined by +
    stage_layers: str  # where layers are not spread as evenly as they can be

    @property
    def family(self) -> str:
        """The family of the plan."""
        return family_of(self)


COLUMNS = PublishedPlan._fields
WORDS = ("source", "stack_family", "recompute", "beside", "stage_layers")
TABLE = "search/published_plans.csv"
SPLITS = ("tp", "y", "z", "pp", "vpp", "cp", "ep", "etp", "zero", "mbs", "recompute")
OTHER_FAMILY = 1.0  # distance of another family of stacks
DOUBLED = 0.5  # of twice as many devices, or twice as long sequences; of parameters it is 1
NEAR = 2.5  # distance up to which a published run is of like size
NEAREST, TRIED = 5, 15  # of these, whose families are usual, and whose plans are tried
OF_EACH = 6  # plans of a family that are simulated first
BYTES = 6, 12  # of a weight with its gradient, and of its states, which ZeRO splits over dp
FILLED = 0.6  # of a device's memory that weights and states may take
WIDEST = 8  # ranks of tp
TOKENS = 16384, 8192  # of a sequence on a rank of cp
CHUNK = 4  # layers
MOST_STAGES = 64


def usual_plans(problem: SearchProblem, machine: Machine) -> dict[str, list[Plan]]:
    """Plans of each family that the stack runs: at most OF_EACH of like published runs, or else
    that which splits least of all that may fit."""
    found: dict[str, list[Plan]] = {}
    room = FILLED * problem.room_bytes(machine)
    published = [plan for words in _published(problem) for plan in _plans(problem, words)]
    others = [plan for words in _words(problem, machine) for plan in _plans(problem, words)]
    others.sort(key=lambda plan: _cost(problem, plan, room))
    for plan in dict.fromkeys(published):
        own = found.setdefault(family_of(plan), [])
        if len(own) < OF_EACH:
            own.append(plan)
    for plan in others:
        found.setdefault(family_of(plan), [plan])
    return found


@session_cached(1)
def published_plans() -> tuple[PublishedPlan, ...]:
    """The plans that come with the package, as `tools/usual_plans.py` writes them."""
    rows = csv.DictReader(shipped_text("simulator", TABLE).splitlines())
    return tuple(PublishedPlan(*(_read(key, row[key]) for key in COLUMNS)) for row in rows)


def _read(key: str, word: str) -> Any:
    if key in WORDS:
        return word
    return float(word) if key == "parameters" else int(word)


def like(problem: SearchProblem) -> list[tuple[float, PublishedPlan]]:
    """The published plans of like models, sequences and numbers of devices with their distances,
    the nearest first."""
    found = []
    stack = problem.stack.family or problem.stack.name
    for plan in published_plans():
        if bool(plan.experts) != bool(problem.gpt.moe.experts):
            continue
        far = abs(math.log2(problem.gpt.parameters / 1e9 / plan.parameters))
        far += DOUBLED * abs(math.log2(problem.devices / plan.devices))
        far += DOUBLED * abs(math.log2(problem.gpt.sequence / plan.sequence))
        far += OTHER_FAMILY * (plan.stack_family != stack)
        if far <= NEAR:
            found.append((far, plan))
    return sorted(found, key=lambda each: each[0])


def usual_families(problem: SearchProblem) -> dict[str, int]:
    """The families of the NEAREST published plans, and how many of these are of each."""
    count: dict[str, int] = {}
    for _, plan in like(problem)[:NEAREST]:
        count[plan.family] = count.get(plan.family, 0) + 1
    return count


def why_none(problem: SearchProblem) -> PlanCannotRunError:
    """Why a problem has no plan: what refuses data parallelism with its fixed fields."""
    fixed = {key: value for key, value in problem.fixed.items() if key != "dp"}
    given = {key: list(each) if isinstance(each, tuple) else each for key, each in fixed.items()}
    none = f"no usual plan of {problem.gpt.name} on {problem.devices} devices"
    none = f"{none} with a batch of {problem.batch} has the fields that are fixed"
    sizes = {"devices": problem.devices, "batch": problem.batch}
    try:
        job = job_of(problem.gpt, {"dp": "rest", **given}, problem.stack, **sizes)
        problem.stack.check(job.plan, job.gpt)
        check(job.gpt, job.plan)
    except SimgptError as error:
        return PlanCannotRunError(f"{none}: {error}")
    return PlanCannotRunError(none)


def _cost(problem: SearchProblem, plan: Plan, room: float) -> tuple[float, int]:
    """By how much the states of a plan miss the room, and into how many parts it splits a layer's
    work."""
    over = max(_state_bytes(problem, plan) - room, 0.0)
    return over, plan.tp * plan.y * plan.z * plan.pp * plan.cp


def _state_bytes(problem: SearchProblem, plan: Plan) -> float:
    """Bytes of weights, gradients and states on a device, about."""
    gpt = problem.gpt
    of_experts = gpt.moe.experts * expert_weights(gpt) * layers_with_experts(gpt)
    split = plan.tp * plan.y * plan.z * plan.pp
    dense = (gpt.parameters - of_experts) / split
    experts = of_experts / (plan.ep * plan.expert_parts * plan.pp)
    held, sharded = BYTES
    copies = plan.dp * plan.cp
    each = (held / (copies if plan.zero == 3 else 1)) + sharded / (copies if plan.zero else 1)
    each_expert = held + sharded / max(copies // plan.ep, 1) if plan.zero else held + sharded
    return dense * each + experts * (each if plan.zero == 3 else each_expert)


def _plans(problem: SearchProblem, words: Words) -> Iterator[Plan]:
    """The plan of some words, if the stack and the model can run it and it keeps what is fixed:
    with the layers on stages that the words name, else with the same number on each if that can be;
    of micro-batches of one sequence, else, as some update rules ask for, of one of all."""
    fixed = {key: value for key, value in problem.fixed.items() if key != "dp"}
    given = {"dp": "rest", "mbs": 1, **words, **fixed}
    if given.get("schedule") in V_SHAPED:
        given.setdefault("vpp", 2)
    even = {key: value for key, value in given.items() if key != "stage_layers" or key in fixed}
    layers = layers_on_stages(problem, given.get("pp", 1), given.get("vpp", 1))
    if layers["stage_layers"] and "ends_as_layers" not in fixed:
        even.setdefault("stage_layers", layers["stage_layers"])
    whole = {key: value for key, value in even.items() if key != "mbs" or key in fixed}
    ways = (given, even, whole) if "stage_layers" in words else (even, whole)
    plans = (_plan_of(problem, each) for each in ways)
    if (plan := next(filter(None, plans), None)) is not None:
        yield plan


def _plan_of(problem: SearchProblem, words: Words) -> Plan | None:
    given = {key: list(each) if isinstance(each, tuple) else each for key, each in words.items()}
    sizes = {"devices": problem.devices, "batch": problem.batch}
    try:
        plan = job_of(problem.gpt, given, problem.stack, **sizes).plan
        gpt = problem.stack.model(problem.gpt, plan.tp)
        problem.stack.check(plan, gpt)
        check(gpt, plan)
    except SimgptError:
        return None
    own = {key: value for key, value in problem.fixed.items() if key != "order"}
    return plan if all(plan.value(key) == value for key, value in own.items()) else None


def _published(problem: SearchProblem) -> Iterator[Words]:
    """What published runs of like size did, in words."""
    for _, plan in like(problem)[:TRIED]:
        own: dict[str, Any] = {key: getattr(plan, key) for key in SPLITS}
        if plan.beside:
            usual = problem.stack.plan_defaults(1, own).get("overlap", OVERLAPS)
            own["overlap"] = [*usual, *plan.beside.split("+")]
        if plan.stage_layers:
            own["stage_layers"] = plan.stage_layers
        yield own


def _words(problem: SearchProblem, machine: Machine) -> Iterator[Words]:
    """What an engineer would try, in words."""
    n = problem.devices
    node = min(machine.devices_per_node, n, WIDEST)
    for tp, cp in product(divisors(node), _contexts(problem.gpt.sequence)):
        shared: dict[str, Any] = {"tp": tp, "cp": cp}
        if problem.stack == EXECUTOR:  # whose defaults are those of the paper's plain algorithm
            shared |= {"zero": 1, "sp": tp > 1}
        for ep in _expert_ranks(problem, machine):
            own = {**shared, "ep": ep, **({"etp": 1} if tp > 1 < ep else {})}
            for pp in divisors(n // (tp * cp)) if n % (tp * cp) == 0 else ():
                yield from _on_stages(problem, {**own, "pp": pp})
    for z, tp in product(divisors(n), divisors(node)):
        if 1 < z <= MOST_STAGES and n % (z * tp) == 0:
            yield {"tp": tp, "z": z}
            yield {"tp": tp, "z": z, "recompute": "full"}


def _on_stages(problem: SearchProblem, own: Words) -> Iterator[Words]:
    """Plans with so many stages: of one with and without FSDP, of several with virtual ones."""
    pp = own["pp"]
    if pp > min(problem.gpt.layers, MOST_STAGES):
        return
    yield own
    if pp == 1:
        yield {**own, "zero": 3}
        yield {**own, "zero": 3, "recompute": "full"}
    else:
        yield {**own, "vpp": _vpp(problem, pp)}
        yield {**own, "recompute": "full"}


def _vpp(problem: SearchProblem, pp: int) -> int:
    """The number of chunks with about CHUNK layers each."""
    layers = problem.gpt.layers / pp
    return min(vpps(problem.gpt, pp), key=lambda vpp: abs(layers / vpp - CHUNK), default=1)


def _contexts(sequence: int) -> list[int]:
    """Over how many ranks sequences are split: those with TOKENS on each."""
    if sequence < LONG:
        return [1]
    each = [max(sequence // tokens, 1) for tokens in TOKENS]
    return sorted({1, *(min(cp, 16) for cp in each)})


def _expert_ranks(problem: SearchProblem, machine: Machine) -> list[int]:
    """Over how many ranks experts are split: none, a node's, or several nodes'."""
    experts = problem.gpt.moe.experts
    if not experts:
        return [1]
    node = machine.devices_per_node
    able = [ep for ep in divisors(experts) if ep <= problem.devices]
    near = [ep for ep in able if ep in (4, 8, 16, 32, 64) or ep == node]
    return [1, *near] if near else able
