"""Lowering a program again in other sizes: only its numbers are calculated anew.

A program is lowered once with formulas in place of the sizes of plan and model
(`workload/sizes/symbolic.py`), noting every condition on sizes that lowering meets. All plans that
meet the same conditions have the same program op by op. Sweeps and folded steps lower the same few
programs all the time; this saves most of that work: names, waits and live ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, overload

from topologies.session import current_session
from workload.gpt import GPT
from workload.grid import WITHIN_STAGE
from workload.lowering.lower import lower_slots
from workload.lowering.sharding import sharding_of
from workload.op import Op
from workload.passes.stack import NO_HABITS, Habits
from workload.pipeline.in_turns import with_pairs
from workload.pipeline.schedule import Slot
from workload.pipeline.stages import stage_slots
from workload.plan import Plan
from workload.program import Program
from workload.sizes.symbolic import Formulas, evaluated, has_formulas
from workload.structure import Structure

PLAN_SIZES = (*WITHIN_STAGE, "ep", "batch", "mbs")
GPT_SIZES = ("hidden", "heads", "ffn", "sequence", "vocab", "kv_heads", "head_width")
NAMES = ("name", "source")
MOST_OPS = 100_000  # kept, of all programs together: some 150 MB
MOST_SEEN = 4096
MOST_PLAIN = 100_000  # ops of a prediction, and of what is tried when it does not fit
Thing = TypeVar("Thing")
Key = tuple[Any, ...]


def lower_again(gpt: GPT, plan: Plan, stage: int = 0, *, habits: Habits = NO_HABITS) -> Program:
    """The program that `lower` writes."""
    return with_pairs(lower_slots_again(gpt, plan, stage, stage_slots(plan, stage), habits))


def lower_slots_again(
    gpt: GPT, plan: Plan, stage: int, order: Sequence[Slot], habits: Habits = NO_HABITS
) -> Program:
    """The program that `lower_slots` writes, in plain matmul forms."""
    sizes = [*(getattr(plan, key) for key in PLAN_SIZES), *(getattr(gpt, key) for key in GPT_SIZES)]
    key = _key(gpt, plan), stage, tuple(order), habits
    exact = gpt, plan, stage, tuple(order), habits
    programs = current_session().the(ProgramCache)
    if (known := programs.plain(exact)) is not None:
        return known
    for written in programs.of(key):
        values = written.formulas.values(sizes)
        if values is not None:
            return written.program(gpt, plan, values)
    if programs.is_new(key):
        return programs.put_plain(exact, lower_slots(gpt, plan, stage, order, habits=habits))
    written = _written(gpt, plan, stage, order, habits)
    programs.put(key, written)
    values = written.formulas.values(sizes)
    assert values is not None, "a program meets its own conditions"
    return written.program(gpt, plan, values)


def expect_many() -> None:
    """Say that many programs will be asked for in this session, so that most will come again: each
    is lowered to formulas at once."""
    current_session().the(ProgramCache).expects_many = True


def structure(gpt: GPT, plan: Plan) -> str:
    """Equal for plans that may have the same programs; to be lowered soonest one after the other,
    as only so many programs are kept."""
    return repr((*_key(gpt, plan), plan.micro_batches))


def _key(gpt: GPT, plan: Plan) -> Key:
    """All that is no size, and of which axes there is more than one rank.

    The order of the ranks matters to nothing but who shards what, and who has which experts.
    """
    other = (field.name for field in fields(plan) if field.name not in {*PLAN_SIZES, "order"})
    experts = plan.expert_tensor_axes, plan.expert_axes, plan.expert_copies
    own = [*(getattr(plan, name) for name in other), sharding_of(plan), *experts]
    wide = [getattr(plan, axis) > 1 for axis in (*WITHIN_STAGE, "ep")]
    known = {*GPT_SIZES, *NAMES}
    rest = (getattr(gpt, field.name) for field in fields(gpt) if field.name not in known)
    return (*own, *wide, *rest)


class _Evaluated(Mapping[str, Thing]):
    """Dataclasses whose formulas are worked out when they are asked for."""

    def __init__(self, things: Mapping[str, Any], values: Sequence[int]) -> None:
        self._things, self._values = things, values
        self._known: dict[str, Thing] = {}

    def __getitem__(self, name: str) -> Thing:
        if name not in self._known:
            thing = self._things[name]
            own = {each.name: getattr(thing, each.name) for each in fields(thing)}
            self._known[name] = type(thing)(**evaluated(own, self._values))
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)


Recipe = tuple[Op, int, int, int, bool]


class _Written:
    """A program of formulas, and the sizes of its buffers.

    A recipe is an op with the places of its bytes, its FLOPs and its replicas among all numbers,
    and whether its attributes hold formulas.
    """

    def __init__(self, formulas: Formulas, pattern: Program) -> None:
        self.formulas, self.pattern = formulas, pattern
        self.outline = Structure(pattern.ops, pattern.buffers, pattern.slot_of)
        self._recipes = [self._recipe(op) for op in pattern.ops]
        self._nbytes = [formulas.place(buffer.nbytes) for buffer in pattern.buffers.values()]
        formulas.close()

    def _recipe(self, op: Op) -> Recipe:
        place = self.formulas.place
        sizes = place(op.nbytes), place(op.flops), place(op.replicas)
        return op, *sizes, has_formulas(op.attributes)

    def program(self, gpt: GPT, plan: Plan, values: Sequence[int]) -> Program:
        """The program with these numbers."""
        return Program(
            gpt,
            plan,
            _EvaluatedOps(self._recipes, values),
            _Evaluated(self.pattern.buffers, values),
            _Evaluated(self.pattern.layouts, values),
            _Evaluated(self.pattern.states, values),
            self.pattern.stage,
            self.pattern.slot_of,
            self.outline,
            [values[place] for place in self._nbytes],
        )


class _EvaluatedOps(Sequence[Op]):
    """Ops whose formulas are worked out when they are asked for."""

    def __init__(self, recipes: Sequence[Recipe], values: Sequence[int]) -> None:
        self._recipes, self._values = recipes, values
        self._known: list[Op | None] = [None] * len(recipes)

    @overload
    def __getitem__(self, at: int) -> Op: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Op, ...]: ...

    def __getitem__(self, at: int | slice) -> Op | tuple[Op, ...]:
        if isinstance(at, slice):
            return tuple(map(self.__getitem__, range(*at.indices(len(self)))))
        op = self._known[at]
        if op is None:
            op = self._known[at] = _op(self._recipes[at], self._values)
        return op

    def __len__(self) -> int:
        return len(self._recipes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def _op(recipe: Recipe, values: Sequence[int]) -> Op:
    op, nbytes, flops, replicas, formulas = recipe
    return Op(
        op.name,
        op.kind,
        op.reads,
        op.writes,
        op.block,
        op.stream,
        op.axes,
        values[nbytes],
        values[flops],
        values[replicas],
        op.dtype,
        evaluated(op.attributes, values) if formulas else op.attributes,
        op.micro_batch,
        op.part,
        op.label,
        op.purpose,
        op.launches,
        op.module,
    )


def _written(gpt: GPT, plan: Plan, stage: int, order: Sequence[Slot], habits: Habits) -> _Written:
    formulas = Formulas()
    of_plan = {key: formulas.input(getattr(plan, key)) for key in PLAN_SIZES}
    of_gpt = {key: formulas.input(getattr(gpt, key)) for key in GPT_SIZES}
    pattern = lower_slots(
        replace(gpt, **of_gpt), replace(plan, **of_plan), stage, order, habits=habits
    )
    return _Written(formulas, pattern)


class ProgramCache:
    """Programs lowered to formulas, the least recently used of which are dropped.

    Formulas take twice the time of numbers, so a program is lowered to them when it is asked for
    again in other sizes, or at once where many are expected. In the same ones it is the same.
    """

    def __init__(self) -> None:
        self._all: dict[Key, list[_Written]] = {}
        self._seen: dict[Key, None] = {}
        self._plain: dict[Key, Program] = {}
        self._ops = 0
        self.expects_many = False

    def is_new(self, key: Key) -> bool:
        """Whether nobody has asked for this before, and perhaps nobody will again."""
        if self.expects_many or key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def plain(self, exact: Key) -> Program | None:
        """One of the last programs of numbers."""
        return self._plain.get(exact)

    def put_plain(self, exact: Key, program: Program) -> Program:
        """Keep a program of numbers, in place of the oldest; returns it."""
        self._plain[exact] = program
        while sum(len(each.ops) for each in self._plain.values()) > MOST_PLAIN:
            del self._plain[next(iter(self._plain))]
        return program

    def of(self, key: Key) -> list[_Written]:
        """The programs of a key, which count as used now."""
        if key in self._all:
            self._all[key] = self._all.pop(key)
        return self._all.get(key, [])

    def put(self, key: Key, written: _Written) -> None:
        """Keep a program."""
        self._all.setdefault(key, []).append(written)
        self._ops += len(written.pattern.ops)
        while self._ops > MOST_OPS and len(self._all) > 1:
            oldest = self._all.pop(next(iter(self._all)))
            self._ops -= sum(len(each.pattern.ops) for each in oldest)
