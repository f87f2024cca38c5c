"""The search problem, and the values that it leaves to single fields of the plan.

A problem asks for the best of all plans that a prediction knows. Of a part of these, the core
space, lower bounds are known: plans on all axes, with keys and values that go around a ring, in
straight schedules with even stages. `unproved` says why there are none for a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import product
from math import isqrt
from typing import Any

from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.kernels import PLAIN_KERNELS
from simulator.limits import check_measured
from simulator.search import allowed_rows
from simulator.search.bounds.layer_kinds import attends_differently, has_kinds
from simulator.search.bounds.layouts import interleaves
from simulator.search.pasted import that_tell_apart
from simulator.stacks.searched import allowed, kept, unbounded
from simulator.stacks.stack import EXECUTOR, Stack
from simulator.step_memory import Room, room_for
from simulator.uncertainty.fitting import LEAST, MOST, SURE
from topologies.machine import Machine
from topologies.records import record
from workload.errors import PlanCannotRunError, PlanError
from workload.exchange.table import DISPATCHERS, NO_ROWS
from workload.expert_loads.histogram import RoutedGPT, different_counts
from workload.gpt import GPT
from workload.grid import AXES
from workload.lowering.layers.cross_entropy import FUSED
from workload.overlaps import OVERLAPS
from workload.passes.activations import ACTIVATIONS
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.pipeline.schedule import STRAIGHT
from workload.plan import text_of
from workload.recipes.table import FP8, NO_RECIPE, RECIPE_NAMES, recipe_of, recipe_words
from workload.recomputation.parts import FULL, NONE, PER_OP, RECOMPUTES, SELECTIVE
from workload.rules.table import rule_of
from workload.splits.context import LONG
from workload.splits.plan_values import ALONE, CHOICES, check_value
from workload.splits.states import PARAMETERS

OF_EXPERTS = ("ep", "etp")
SHAPE = (*AXES, "mbs", "zero", "recompute", "sp", *OF_EXPERTS)
SEARCHED = (*SHAPE, "vpp", "schedule", "overlap", "order", "dispatcher")
SEVERAL = ("precision", "context_kind", "dispatcher")  # of which any may be asked for
LONGER = 32768  # tokens of a sequence, from which on it may be split over more ranks
FEW, MANY = 4, 16  # ranks over which shorter and longer sequences are split at most


@record(slots=False)
class SearchProblem:
    """Which plan is best for `gpt` on `devices` devices, `batch` sequences a step.

    `fixed` has fields of the plan that every answer must have. `several` has, for some of SEVERAL,
    the words of which any plan may have one; without it a model keeps its precision, since that
    changes what is trained, and dispatchers are those of the stack. `stack` says what plans can be,
    `behaviour` what programs of the core space are bounded with. A part of a problem may have plans
    alone that split sequences over `least_context` ranks or more, or experts over `least_expert`.
    Plans must fit into a device's memory with a probability of `p_fits`; `room` is what there is
    for tensors where measured peaks say so.
    """

    gpt: GPT
    devices: int
    batch: int
    fixed: Mapping[str, Any] = field(default_factory=dict)
    several: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    least_context: int = 1
    least_expert: int = 1
    stack: Stack = EXECUTOR
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR
    p_fits: float = SURE
    room: Room | None = None

    def __post_init__(self) -> None:
        if not LEAST <= self.p_fits <= MOST:
            raise PlanError(
                f"plans cannot be asked to fit with a probability of {self.p_fits:g}; take "
                f"{LEAST:g} to {MOST:g}"
            )
        if self.fixed.get("batch", self.batch) != self.batch:
            raise PlanError("a search cannot keep batch; it asks for one batch")
        dispatcher = self.stack.plan.get("dispatcher", "usual")
        fixed = recipe_words(dict(self.fixed))
        told = that_tell_apart(fixed, self.gpt, self.batch, dispatcher)
        if told.get("loss") == FUSED:
            told = {"tp": 1, "y": 1, **told}  # of a whole vocabulary alone
        object.__setattr__(self, "fixed", told)
        for key in ALONE:
            if key in self.fixed:
                check_value(key, self.fixed[key])
        asked = self.fixed.get("dispatcher"), *self.several.get("dispatcher", ())
        for each in filter(None, asked):
            if not self.gpt.moe.experts:
                name = self.gpt.name
                raise PlanError(f"dispatcher={each} sends rows to experts; {name} has none")
            self.stack.check_dispatcher(each)
            if self.fixed.get("ep") == 1 and DISPATCHERS[each].needs_ranks:
                raise PlanCannotRunError(f"dispatcher={each} {NO_ROWS}")
        if self.fixed.get("fp8_dispatch") and not self.gpt.moe.experts:
            raise PlanError(f"fp8_dispatch=true sends rows to experts; {self.gpt.name} has none")

    def room_bytes(self, machine: Machine) -> int:
        """The largest peak of a plan that fits into a machine's device: for all plans the same."""
        room = self.room or room_for(machine, self.stack, experts=bool(self.gpt.moe.experts))
        return room.most_bytes(self.p_fits)

    def choices(self, key: str, values: Sequence[Any]) -> list[Any]:
        """Keep the values of a field that the core space has."""
        if key in self.fixed:
            return [self.fixed[key]]
        if key == "cp":
            return [value for value in values if value <= self.most_context]
        able = self._allowed.get(key)
        return [value for value in values if value in able] if able else list(values)

    @property
    def most_context(self) -> int:
        """Over how many ranks plans of the core space split a sequence at most."""
        sequence = self.gpt.sequence
        return 1 if sequence < LONG else FEW if sequence < LONGER else MANY

    @cached_property
    def recomputations(self) -> list[str]:
        """The kinds of recomputation of the core space: nothing, what the stack's selective one
        does, or whole layers, which need least memory."""
        if "recompute" in self.fixed:
            known = [self.fixed["recompute"]]
        else:
            known = [NONE, self.stack.recompute(SELECTIVE), FULL]
            refusal = self.stack.runs.value_refusal
            known = [each for each in known if not refusal("recompute", each)]
        return allowed_rows.run(self.stack, self.fixed, "recompute", known)

    @cached_property
    def _allowed(self) -> Mapping[str, tuple[Any, ...]]:
        return {} if self.stack == EXECUTOR else allowed(self.stack)

    @property
    def recipe(self) -> str:
        """The recipe of all plans, if they have one."""
        return str(self.fixed.get("recipe", NO_RECIPE))

    def parts(self) -> list[SearchProblem]:
        """The core space in parts: one for each of several precisions and kinds of context, each
        with the model that plans have under the stack."""
        return [part for each in self._variants() for part in each._by_model()]

    def _variants(self) -> Iterator[SearchProblem]:
        """The problem for each precision, and each way in which parts of sequences meet."""
        ways = self._context_ways
        for chosen, way in product(self.precisions, ways):
            least = 2 if way != ways[0] else self.least_context
            yield replace(self, fixed={**self.fixed, **chosen, **way}, least_context=least)

    @property
    def precisions(self) -> list[dict[str, Any]]:
        """The words of each precision of which plans may have one; one row without any if all have
        the same."""
        given = self.several.get("precision", ())
        return [recipe_words({"precision": precision}) for precision in given] or [{}]

    @property
    def _context_ways(self) -> list[dict[str, Any]]:
        """The ways in which parts of sequences meet, that of whole sequences first: around a ring,
        unless others are asked for."""
        if self.fixed.get("cp", self.most_context) == 1:
            return [{}]
        able = self._allowed.get("context_kind", CHOICES["context_kind"])
        given = self.several.get("context_kind", able[:1])
        given = (self.fixed["context_kind"],) if "context_kind" in self.fixed else given
        return [{"context_kind": kind} for kind in given]

    def _by_model(self) -> list[SearchProblem]:
        """Parts with one model each: of a vocabulary padded for tp one for every tp that has plans,
        else one part alone."""
        every = replace(self, fixed=kept(self.stack, self.fixed))
        sizes = every.choices(
            "tp", [x for x in divisors(self.devices) if self.gpt.attention.heads % x == 0]
        )
        models = [self.stack.model(self.gpt, x) for x in sizes]
        if all(model == models[0] for model in models):
            return [replace(every, gpt=models[0] if models else self.gpt)]
        return [
            replace(every, gpt=model, fixed={**every.fixed, "tp": x})
            for x, model in zip(sizes, models, strict=True)
        ]

    @property
    def dispatchers(self) -> list[str]:
        """The dispatchers of plans that split experts."""
        own = self.stack.searched_dispatchers
        tried = self.choices("dispatcher", self.several.get("dispatcher", own))
        return allowed_rows.run(self.stack, self.fixed, "dispatcher", tried)

    def on(self, machine: Machine) -> SearchProblem:
        """The problem on a machine: without dispatchers that nobody asked for, of which it has no
        times; a MachineError where it cannot multiply by a recipe that is asked for."""
        given = self.several.get("precision", (self.recipe,))
        for name in given:
            if name in RECIPE_NAMES and name != NO_RECIPE:
                peak_flops_per_s(machine, recipe_of(name).dtype)
                check_measured(machine, PLAIN_KERNELS, recipe=name)
        if "dispatcher" in self.several or "dispatcher" in self.fixed or not self.gpt.moe.experts:
            return self
        measured = machine.profile is not None and "all_to_all" in machine.profile.collectives
        able = [each for each in self.dispatchers if not (measured and DISPATCHERS[each].in_steps)]
        return replace(self, several={**self.several, "dispatcher": tuple(able)})

    @property
    def others(self) -> dict[str, Any]:
        """The fixed fields that are not searched."""
        return {key: value for key, value in self.fixed.items() if key not in SEARCHED}


# Fixed fields of which no bounds are known, where they are not as said here.
ASKED: Mapping[str, Any] = {
    "stage_layers": (),
    "ends_as_layers": False,
    "context_latents": False,
    "context_heads": 1,
    "fp8_params": False,
    "fp8_dispatch": False,
    "offload_share": 1.0,
    "matmul_forms": "plain",
}


def unproved(problem: SearchProblem, machine: Machine) -> str:
    """Why no lower bounds are known of the plans that a problem asks for; "" where they are."""
    of_stack = (
        unbounded(problem.stack, problem.gpt, {**problem.fixed, **chosen}, machine)
        for chosen in problem.precisions
    )
    return next(_unbounded(problem), "") or next(filter(None, of_stack), "")


def _unbounded(problem: SearchProblem) -> Iterator[str]:
    gpt, fixed = problem.gpt, problem.fixed
    for key, plain in ASKED.items():
        if fixed.get(key, plain) != plain:
            yield f"{key}={text_of(fixed[key])}"
    if _gathers_by_overlap(problem):
        yield f"precision=fp8 with recompute={PER_OP}, whose overlap decides what is sent in 8 bits"
    if fixed.get("loss") == FUSED and fixed.get("loss_chunks", 1) == 1:
        yield "loss=fused without loss_chunks, whose number of chunks depends on the plan"
    schedule = fixed.get("schedule", STRAIGHT[0])
    if schedule not in STRAIGHT:
        yield f"schedule={schedule}"
    for switch in fixed.get("overlap", ()):
        if switch not in OVERLAPS:
            yield f"overlap={switch}"
    recompute = problem.stack.recompute(str(fixed.get("recompute", NONE)))
    if recompute not in (*RECOMPUTES, problem.stack.recompute(SELECTIVE)):
        yield f"recompute={recompute}"
    rule = rule_of(str(fixed.get("optimizer", "adamw")))
    if rule.in_backward or rule.zeroth_order:
        yield f"optimizer={rule.name}"
    if fixed.get("offload") in (ACTIVATIONS, PARAMETERS):
        yield f"offload={fixed['offload']}"
    given = fixed.get("dispatcher"), *problem.several.get("dispatcher", ())
    usual = problem.stack.searched_dispatchers or problem.stack.dispatchers
    for each in filter(None, given) if any(given) else usual[:1] if gpt.moe.experts else ():
        if not DISPATCHERS[each].by_number:
            yield f"dispatcher={each}"
    yield from _unbounded_model(gpt)


def _gathers_by_overlap(problem: SearchProblem) -> bool:
    """Whether rows that run again per op may be gathered in 16 bits beside a matmul, and in fp8
    where that overlap is off."""
    recipes = [chosen.get("recipe", problem.recipe) for chosen in problem.precisions]
    splits = "tp" in problem.stack.can["axes"] and problem.fixed.get("tp") != 1
    return FP8 in recipes and PER_OP in problem.recomputations and splits


def _unbounded_model(gpt: GPT) -> Iterator[str]:
    if gpt.pattern:
        yield "layers in a pattern"
    if gpt.mtp.layers and gpt.moe.expert_every > 1:
        yield f"mtp_layers={gpt.mtp.layers} with expert_every={gpt.moe.expert_every}"
    if gpt.mtp.layers and attends_differently(gpt):
        yield f"mtp_layers={gpt.mtp.layers} with global_every={gpt.attention.global_every}"
    if isinstance(gpt, RoutedGPT) and not gpt.moe.capacity and len(different_counts(gpt)) > 1:
        yield "layers whose experts are chosen differently"


def schedules(problem: SearchProblem, pp: int, micro_batches: int) -> list[tuple[str, int]]:
    """The legal pairs of schedule and vpp; a pipeline of one stage has but one order."""
    schedules = problem.choices("schedule", STRAIGHT if pp > 1 else ["1f1b"])
    found = []
    for schedule in schedules:
        several = pp > 1 and schedule == "1f1b" and micro_batches % pp == 0
        chunks = _vpps(problem, pp) if schedule == "1f1b" and pp > 1 else [1]
        for vpp in problem.choices("vpp", chunks):
            if vpp == 1 or (several and chunks_fit(problem, pp * vpp)):
                found.append((schedule, vpp))
    return found


def _vpps(problem: SearchProblem, pp: int) -> list[int]:
    if has_kinds(problem.gpt):
        return interleaves(problem.gpt, pp)
    return divisors(problem.gpt.layers)


def chunks_fit(problem: SearchProblem, chunks: int) -> bool:
    """Whether the layers split over so many chunks: evenly, if all are of one kind."""
    if has_kinds(problem.gpt) and not problem.stack.can.get("even_layers"):
        return chunks <= problem.gpt.layers
    return problem.gpt.layers % chunks == 0


def recomputes(problem: SearchProblem) -> list[str]:
    """The kinds of recomputation that the problem leaves."""
    return problem.recomputations


def divisors(number: int) -> list[int]:
    """All divisors, the smallest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]
