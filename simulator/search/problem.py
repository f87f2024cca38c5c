"""The search problem, and the values that it leaves to single fields of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import product
from math import isqrt
from typing import Any

from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.kernels import PLAIN_KERNELS
from simulator.limits import check_measured
from simulator.search.asked import apart, choices, dispatchers, exchanges, uneven_layers, v_shape
from simulator.search.asked.pasted import that_tell_apart
from simulator.search.bounds.layer_kinds import attends_differently, has_kinds
from simulator.search.bounds.layouts import interleaves
from simulator.stacks.searched import allowed, kept
from simulator.stacks.stack import EXECUTOR, Stack
from simulator.step_memory import Room, room_for
from simulator.uncertainty.fitting import LEAST, MOST, SURE
from topologies.machine import Machine
from topologies.records import record
from workload.dispatchers.table import HIERARCHICAL
from workload.errors import PlanError
from workload.gpt import GPT
from workload.grid import AXES
from workload.lowering.layers.further.cross_entropy import FUSED
from workload.passes.activations import ACTIVATIONS
from workload.passes.stack import NO_HABITS, Habits
from workload.pipeline.schedule import STRAIGHT, V_SHAPED
from workload.recipes.table import FP8, NO_RECIPE, RECIPE_NAMES, recipe_of, recipe_words
from workload.rules.table import rule_of
from workload.splits.plan_values import ALONE, CHOICES, check_value
from workload.splits.states import PARAMETERS

OF_EXPERTS = ("ep", "etp")
SHAPE = (*AXES, "mbs", "zero", "recompute", "sp", *OF_EXPERTS)
SEARCHED = (*SHAPE, "vpp", "schedule", "overlap", "order", "dispatcher")
SEVERAL = ("precision", "context_kind", "dispatcher")  # of which any may be asked for
REFUSED = {
    "stage_layers": "it splits layers evenly",
    "ends_as_layers": "it splits layers evenly",
    "batch": "it asks for one batch",
    "context_latents": "compare plans by predict --sweep",
    "fp8_params": "compare plans by predict --sweep",
    "offload_share": "compare plans by predict --sweep",
}
CHUNKS_UNSAID = (
    "a search cannot keep loss=fused alone, whose number of chunks depends on the plan: give "
    "loss_chunks with it, or compare plans by predict --sweep"
)
NOT_IN_FP8 = (
    "a search cannot keep precision=fp8, since which rows a stack gathers in fp8 depends on the "
    "overlap, and no bounds are known: compare plans by predict --sweep, or search with a recipe, "
    "as precision=fp8-tensorwise"
)
FAMILIES: Mapping[str, Callable[[int, int, int, int], bool]] = {
    "data parallelism alone, ZeRO and FSDP": lambda x, y, z, pp: x * y * z * pp == 1,
    "tensor and data parallelism": lambda x, y, z, pp: x * y > 1 and z * pp == 1,
    "weights split over z, no pipeline": lambda x, y, z, pp: z > 1 and pp == 1,
    "pipeline and data parallelism": lambda x, y, z, pp: x * y * z == 1 and pp > 1,
    "pipeline with tensor parallelism": lambda x, y, z, pp: x * y * z > 1 and pp > 1,
}  # of plans by their axes: each plan is in one of them


@record(slots=False)
class SearchProblem:
    """Which plan is best for `gpt` on `devices` devices, `batch` sequences a step.

    `fixed` has fields of the plan that every answer must have; those that it does not name and that
    are not searched stand at their defaults. With a `family`, one of FAMILIES, plans of that alone
    are searched. Plans that split sequences over context are searched with `splits_sequences`
    alone: they are as many again as all others, and of use where sequences are long. `several` has,
    for some of SEVERAL, the words of which any plan may have one; without it a model keeps its
    precision, since that changes what is trained, and dispatchers are those of the stack. `also`
    has choices that are tried where they are asked for (`asked/choices.py`). `stack` says what
    plans can be, `habits` what its programs are bounded with. A part of a problem may have plans
    alone that split sequences over `least_context` ranks or more, experts over
    `least_expert`, or that all have the overlaps `beside`. Plans must fit into a device's memory
    with a probability of `p_fits`; `room` is what there is for tensors where measured peaks say so.
    """

    gpt: GPT
    devices: int
    batch: int
    fixed: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""
    splits_sequences: bool = False
    several: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    also: choices.Asked = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    least_context: int = 1
    least_expert: int = 1
    stack: Stack = EXECUTOR
    habits: Habits = NO_HABITS
    p_fits: float = SURE
    room: Room | None = None

    def __post_init__(self) -> None:
        if not LEAST <= self.p_fits <= MOST:
            raise PlanError(
                f"plans cannot be asked to fit with a probability of {self.p_fits:g}; take "
                f"{LEAST:g} to {MOST:g}"
            )
        dispatcher = self.stack.plan.get("dispatcher", "usual")
        told = that_tell_apart(self.fixed, self.gpt, self.batch, dispatcher)
        if told.get("loss") == FUSED:
            told = {"tp": 1, "y": 1, **told}  # of a whole vocabulary alone
        object.__setattr__(self, "fixed", told)
        if FP8 in (self.fixed.get("precision"), *self.several.get("precision", ())):
            raise PlanError(NOT_IN_FP8)
        for key in ALONE:
            if key in self.fixed:
                check_value(key, self.fixed[key])
        for key, instead in REFUSED.items():
            if key in self.fixed:
                raise PlanError(f"a search cannot keep {key}; {instead}")
        if self.fixed.get("loss") == FUSED and self.fixed.get("loss_chunks", 1) == 1:
            raise PlanError(CHUNKS_UNSAID)
        recompute = str(self.fixed.get("recompute", "none"))
        if why := choices.kept_recomputation(recompute):
            raise PlanError(f"a search cannot keep recompute={recompute}: {why}")
        choices.check(self.also, self.gpt, self.stack, self.fixed, splits=self.splits)
        asked = self.fixed.get("dispatcher"), *self.several.get("dispatcher", ())
        dispatchers.check([each for each in asked if each], self.gpt, self.stack)
        dispatchers.check_narrow(self)
        _check_covered(self.gpt)
        rule = rule_of(str(self.fixed.get("optimizer", "adamw")))
        if rule.in_backward:
            raise PlanError(
                f"a search cannot keep optimizer={rule.name}, which runs one "
                "micro-batch without a pipeline; predict the plans that it leaves"
            )
        if rule.zeroth_order:
            raise PlanError(
                f"a search cannot keep optimizer={rule.name}, since its bounds are those of steps "
                "with backward passes; compare plans by predict --sweep"
            )
        if (offload := self.fixed.get("offload")) in (ACTIVATIONS, PARAMETERS):
            raise PlanError(
                f"a search cannot keep offload={offload}: no lower bounds of its copies are known; "
                "compare plans by predict --sweep"
            )
        if self.fixed.get("matmul_forms", "plain") != "plain":
            raise PlanError("a search cannot keep matmul_forms=tuned; tune the plan that it finds")

    def room_bytes(self, machine: Machine) -> int:
        """The largest peak of a plan that fits into a machine's device: for all plans the same."""
        room = self.room or room_for(machine, self.stack, experts=bool(self.gpt.experts))
        return room.most_bytes(self.p_fits)

    def choices(self, key: str, values: Sequence[Any]) -> list[Any]:
        """Those of some values of a field that the problem leaves."""
        if key == "cp" and key not in self.fixed and not self.splits_sequences:
            return [1]
        if key not in self.fixed:
            able = self._allowed.get(key)
            return [value for value in values if value in able] if able else list(values)
        return [self.fixed[key]]

    @cached_property
    def of_exchanges(self) -> tuple[str, ...]:
        """The overlaps of experts' all-to-alls with other compute that all plans have."""
        return exchanges.of_exchanges((*self.fixed.get("overlap", ()), *self.beside))

    @property
    def least_split(self) -> int:
        """Over how many ranks plans split experts at least: all-to-alls that run beside other
        compute must be there."""
        return 2 if self.of_exchanges else self.least_expert

    @cached_property
    def recomputations(self) -> list[str]:
        """The kinds of recomputation that the problem leaves."""
        known = choices.recomputations(self.also, self.gpt, self.stack)
        tried = apart.recomputed(self, known)
        return apart.run(self, "recompute", tried)

    @cached_property
    def _allowed(self) -> Mapping[str, tuple[Any, ...]]:
        return {} if self.stack == EXECUTOR else allowed(self.stack)

    def parts(self) -> list[SearchProblem]:
        """The problem in parts: one for each of several precisions and kinds of context, each with
        the model that plans have under the stack."""
        return [part for each in self._variants() for part in each._by_model()]

    def _variants(self) -> Iterator[SearchProblem]:
        """The problem for each precision, and each way in which parts of sequences meet."""
        ways, besides = self._context_ways, exchanges.sets_of(self.also.get("overlap", ()))
        precisions, rest = self.several.get("precision", ("",)), choices.within_parts(self.also)
        every = product(precisions, ways, besides, choices.orders(self.also))
        for precision, way, beside, order in every:
            if self.stack.runs.refusal_beside((*self.fixed.get("overlap", ()), *beside)):
                continue
            chosen = recipe_words({"precision": precision}) if precision else {}
            fixed = {**self.fixed, **chosen, **way, **order}
            least = 2 if way != ways[0] else self.least_context
            part = replace(self, fixed=fixed, also=rest, least_context=least, beside=beside)
            narrow = dispatchers.NARROW in self.also
            yield from dispatchers.parts(part, also_narrow=narrow)

    @property
    def _context_ways(self) -> list[dict[str, Any]]:
        """The ways in which parts of sequences meet, that of whole sequences first."""
        if not self.splits:
            return [{}]
        given = self.several.get("context_kind", CHOICES["context_kind"])
        if "context_kind" not in self.several:
            given = tuple(self.choices("context_kind", given))
        given = ("ring",) if "context_heads" in self.fixed else given
        given = (self.fixed["context_kind"],) if "context_kind" in self.fixed else given
        heads = [int(word) for word in self.also.get("context_heads", ())]
        return [
            *({"context_kind": kind} for kind in given),
            *({"context_kind": "ring", "context_heads": each} for each in heads),
        ]

    @property
    def splits(self) -> bool:
        """Whether some plans split sequences."""
        return bool(self.fixed.get("cp", 1 + self.splits_sequences) > 1)

    def _by_model(self) -> list[SearchProblem]:
        """Parts with one model each: of a vocabulary padded for x one for every x that has plans,
        else one part alone."""
        every = replace(self, fixed=kept(self.stack, self.fixed))
        sizes = every.choices("tp", [x for x in divisors(self.devices) if self.gpt.heads % x == 0])
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
        return apart.run(self, "dispatcher", tried)

    def on(self, machine: Machine) -> SearchProblem:
        """The same on a machine: without dispatchers that nobody asked for, of which it has no
        times; a MachineError where it cannot multiply by a recipe that is asked for, or where more
        rows of experts may take less time, and layers differ in these."""
        uneven_layers.check(self.gpt, machine)
        given = self.several.get("precision", (self.fixed.get("recipe", NO_RECIPE),))
        for name in given:
            if name in RECIPE_NAMES and name != NO_RECIPE:
                peak_flops_per_s(machine, recipe_of(name).dtype)
                check_measured(machine, PLAIN_KERNELS, recipe=name)
        if "dispatcher" in self.several or "dispatcher" in self.fixed or not self.gpt.experts:
            return self
        measured = machine.profile is not None and "all_to_all" in machine.profile.collectives
        able = [each for each in self.dispatchers if not (measured and each == HIERARCHICAL)]
        return replace(self, several={**self.several, "dispatcher": tuple(able)})

    def in_family(self, x: int, y: int, z: int, pp: int) -> bool:
        """Whether plans on these axes are searched, whatever the rest of the axes."""
        return not self.family or FAMILIES[self.family](x, y, z, pp)

    @property
    def others(self) -> dict[str, Any]:
        """The fixed fields that are not searched."""
        return {key: value for key, value in self.fixed.items() if key not in SEARCHED}


def _check_covered(gpt: GPT) -> None:
    """Refuse models of whose layers no bounds are known."""
    if gpt.pattern:
        raise PlanError(
            f"a search covers models of layers of attention and an MLP each; {gpt.name} "
            "has a pattern of others: predict plans one by one, or by --sweep"
        )
    if gpt.mtp_layers and (gpt.expert_every > 1 or attends_differently(gpt)):
        key = "expert_every" if gpt.expert_every > 1 else "global_every"
        raise PlanError(
            "a search covers modules for further tokens behind layers that attend alike and all "
            f"have experts from some layer on; {gpt.name} has mtp_layers={gpt.mtp_layers} and "
            f"{key}={getattr(gpt, key)}: predict plans one by one, or by --sweep"
        )


def schedules(problem: SearchProblem, pp: int, micro_batches: int) -> list[tuple[str, int]]:
    """The legal pairs of schedule and vpp; a pipeline of one stage has but one order."""
    schedules = problem.choices("schedule", STRAIGHT if pp > 1 else ["1f1b"])
    found = []
    for schedule in schedules:
        chunks = _vpps(problem, pp) if schedule == "1f1b" and pp > 1 else [1]
        chunks = [v_shape.CHUNKS] if schedule in V_SHAPED else chunks
        for vpp in problem.choices("vpp", chunks):
            legal = (vpp == 1 and schedule not in V_SHAPED) or (
                _interleaved(schedule, pp, micro_batches, vpp) and chunks_fit(problem, pp * vpp)
            )
            if legal and exchanges.can_run(problem.of_exchanges, pp, schedule, vpp):
                found.append((schedule, vpp))
    return found


def _interleaved(schedule: str, pp: int, micro_batches: int, vpp: int) -> bool:
    """Whether stages can have several chunks."""
    if schedule in V_SHAPED:
        return vpp == v_shape.CHUNKS and v_shape.can_run(schedule, pp, micro_batches)
    return pp > 1 and schedule == "1f1b" and micro_batches % pp == 0


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
