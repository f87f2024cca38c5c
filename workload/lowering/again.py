"""Lowering what was lowered before in other sizes: only the numbers are calculated anew.

A program is written once with formulas in place of a plan's and a model's sizes
(`workload/formulas.py`). Whatever meets the conditions noted on the way has the same program, op by
op. In sweeps and folded steps, which lower the same few programs all the time, that spares most of
the work: writing names, and working out who waits for whom and who frees what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from workload.formulas import Formulas, evaluated, has_formulas
from workload.gpt import GPT
from workload.lowering.lower import lower_slots
from workload.op import Op
from workload.outline import Outline
from workload.plan import Plan
from workload.program import Program
from workload.schedule import Slot, slots

PLAN_SIZES = ("x", "y", "z", "data", "batch", "micro_batch")
GPT_SIZES = ("hidden", "heads", "ffn", "sequence", "vocab", "kv_heads", "head_width")
NAMES = ("name", "source")
MOST_OPS = 60_000  # kept, of all programs together: some 100 MB
MOST_SEEN = 4096
Thing = TypeVar("Thing")
Key = tuple[Any, ...]


def lower_again(gpt: GPT, plan: Plan, stage: int = 0) -> Program:
    """The program that `lower` writes."""
    order = slots(plan.schedule, stage, plan.pipe, plan.micro_batches, plan.interleave)
    return lower_slots_again(gpt, plan, stage, order)


def lower_slots_again(gpt: GPT, plan: Plan, stage: int, order: Sequence[Slot]) -> Program:
    """The program that `lower_slots` writes, in plain matmul forms."""
    sizes = [*(getattr(plan, key) for key in PLAN_SIZES), *(getattr(gpt, key) for key in GPT_SIZES)]
    key = _key(gpt, plan), stage, tuple(order)
    for written in _SHELF.of(key):
        values = written.formulas.values(sizes)
        if values is not None:
            return written.program(gpt, plan, values)
    if _SHELF.is_new(key):
        return lower_slots(gpt, plan, stage, order)
    written = _written(gpt, plan, stage, order)
    _SHELF.put(key, written)
    values = written.formulas.values(sizes)
    assert values is not None, "a program meets its own conditions"
    return written.program(gpt, plan, values)


def _key(gpt: GPT, plan: Plan) -> Key:
    """All that is no size."""
    own = [getattr(plan, field.name) for field in fields(plan) if field.name not in PLAN_SIZES]
    known = {*GPT_SIZES, *NAMES}
    return (*own, *(getattr(gpt, field.name) for field in fields(gpt) if field.name not in known))


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


@dataclass(frozen=True)
class _Written:
    """A program of formulas, and the sizes of its buffers."""

    formulas: Formulas
    pattern: Program
    nbytes: tuple[int, ...]

    @cached_property
    def outline(self) -> Outline:
        """What all programs like it share."""
        return Outline(self.pattern.ops, self.pattern.buffers)

    def program(self, gpt: GPT, plan: Plan, values: Sequence[int]) -> Program:
        """The program with these numbers."""
        return Program(
            gpt,
            plan,
            tuple(_op(op, values) if sized else op for op, sized in self._ops),
            _Evaluated(self.pattern.buffers, values),
            _Evaluated(self.pattern.layouts, values),
            _Evaluated(self.pattern.states, values),
            self.pattern.stage,
            self.pattern.slot_of,
            self.outline,
            evaluated(self.nbytes, values),
        )

    @cached_property
    def _ops(self) -> list[tuple[Op, bool]]:
        return [
            (op, any(map(has_formulas, (op.nbytes, op.flops, op.replicas, op.attributes))))
            for op in self.pattern.ops
        ]


def _op(op: Op, values: Sequence[int]) -> Op:
    return Op(
        op.name,
        op.kind,
        op.reads,
        op.writes,
        op.block,
        op.stream,
        op.axes,
        evaluated(op.nbytes, values),
        evaluated(op.flops, values),
        evaluated(op.replicas, values),
        op.dtype,
        evaluated(op.attributes, values) if op.attributes else op.attributes,
    )


def _written(gpt: GPT, plan: Plan, stage: int, order: Sequence[Slot]) -> _Written:
    formulas = Formulas()
    of_plan = {key: formulas.input(getattr(plan, key)) for key in PLAN_SIZES}
    of_gpt = {key: formulas.input(getattr(gpt, key)) for key in GPT_SIZES}
    pattern = lower_slots(replace(gpt, **of_gpt), replace(plan, **of_plan), stage, order)
    nbytes = tuple(buffer.nbytes for buffer in pattern.buffers.values())
    formulas.close()
    return _Written(formulas, pattern, nbytes)


class _Shelf:
    """Programs written so far, the least used of which make room.

    Formulas take twice the time of numbers, so a program is worth them when it comes again.
    """

    def __init__(self) -> None:
        self._all: dict[Key, list[_Written]] = {}
        self._seen: dict[Key, None] = {}
        self._ops = 0

    def is_new(self, key: Key) -> bool:
        """Whether nobody has asked for this before."""
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return True

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


_SHELF = _Shelf()
