"""The programs of many shapes, lowered once for all whose ops are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from functools import cached_property
from math import prod
from typing import Any, TypeVar

import numpy as np

from simulator.search.bounds.layer_kinds import base_of, kind_of
from simulator.search.expert_splits import folds_of
from simulator.search.problem import SearchProblem
from simulator.search.space import Space
from topologies.records import record
from topologies.session import current_session
from workload.expert_loads.histogram import RoutedGPT
from workload.expert_loads.rank_sizes import least_sizes
from workload.grid import SHARDS, WITHIN_STAGE
from workload.lowering import lower
from workload.op import (
    BUCKET_REDUCE,
    BUCKET_SCATTER,
    EMBED,
    FORWARD,
    GRAD_SCATTER,
    HEAD,
    PARAMETER_GATHER,
    WEIGHT_GATHER,
    Op,
)
from workload.overlaps import OVERLAPS
from workload.passes.stack import PLAIN_BEHAVIOUR, TRAINING, StackBehaviour
from workload.plan import Plan
from workload.program import Program
from workload.sizes.arrays import Bytes, Counts, Flags, Indices, Parts, Ticks
from workload.sizes.vectorized import Lanes, LaneSteps, SharedSteps, UnequalLanesError
from workload.splits.experts import FOLDED

SIZES = (*WITHIN_STAGE, "mbs", "ep")
KINDS = ("zero", "recompute", "sp", "etp")
OF_TABLES = (BUCKET_SCATTER, BUCKET_REDUCE, PARAMETER_GATHER)
MOST = 2  # micro-batches: the first overwrites gradients, the others add to them


Found = TypeVar("Found")


@record(slots=False)
class BatchedProgram:
    """One program of a stage with one layer of each kind and at most two micro-batches, with sizes
    for each of `rows` of a space.

    `orders` has the number of each row's rank order, or ANY (`orders.py`). `rings`
    caches the rows' groups by axes, `timed` the bounds of their ops, `hosts` how long the host
    issues them, `parts` the rows in parts that agree in some inputs of lowering and on some rings,
    `sizes` those of buffers, `notes` what else follows from all of these or some (`noted`). What
    varies from row to row was calculated by `steps`.
    """

    rows: Indices
    program: Program
    orders: Indices
    steps: LaneSteps | None = None
    rings: dict[tuple[object, ...], Indices] = field(default_factory=dict)
    timed: dict[tuple[object, ...], Ticks] = field(default_factory=dict)
    hosts: dict[tuple[object, ...], Ticks | None] = field(default_factory=dict)
    parts: dict[tuple[int, tuple[object, ...]], Parts] = field(default_factory=dict)
    sizes: dict[str, Bytes] = field(default_factory=dict)
    notes: dict[object, Any] = field(default_factory=dict)

    @property
    def micro_batches(self) -> int:
        """How many micro-batches the program has."""
        return self.program.plan.micro_batches

    def values(self, number: Any) -> Counts:
        """A size of the program as an array with an entry for each row."""
        if isinstance(number, Lanes):
            return number.values
        return np.full(len(self.rows), number, dtype=np.int64)

    def nbytes(self, name: str) -> Bytes:
        """The size of a buffer for each row."""
        if name not in self.sizes:
            self.sizes[name] = self.values(self._sizes[name])
        return self.sizes[name]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(zip(self.program.buffers, least_sizes(self.program), strict=True))

    def noted(self, find: Callable[[BatchedProgram], Found]) -> Found:
        """What a function finds out about this, worked out once."""
        if find not in self.notes:
            self.notes[find] = find(self)
        found: Found = self.notes[find]
        return found

    def only(self, keep: Flags) -> BatchedProgram:
        """The program of some of the rows."""
        return self if keep.all() else placed(self, np.flatnonzero(keep), self.orders[keep])


@record(slots=False, kw_only=True)
class PlacedProgram(BatchedProgram):
    """Rows of `base`, each with its ranks in one order, or any that has an axis first: `lane` says
    which row of it each one is."""

    base: BatchedProgram
    lane: Indices

    @property
    def stands_as_base(self) -> bool:
        """Whether the ranks of each row stand as those of its row of `base`."""
        return np.array_equal(self.orders, self.base.orders[self.lane])

    def values(self, number: Any) -> Counts:
        """See `BatchedProgram`; the program is that of `base`."""
        return self.base.values(number)[self.lane]


def placed(base: BatchedProgram, lane: Indices, orders: Indices) -> PlacedProgram:
    """Some rows of `base` with their ranks in these orders."""
    return PlacedProgram(base.rows[lane], base.program, orders, base=base, lane=lane)


def kinds(space: Space, rows: Indices, *, together: bool = False) -> list[Indices]:
    """The rows in parts whose programs are mostly alike; with `together` those of one micro-batch
    beside those of several, which have what it has."""
    columns = [space.columns[key][rows] for key in KINDS]
    columns += [np.minimum(space.columns[key][rows], 2) for key in (*WITHIN_STAGE, "ep")]
    if space.problem.behaviour.once_a_step:
        columns.append(np.minimum(space.columns["pp"][rows], 2))
    if _has_steps(space.problem):
        columns.append(space.columns["cp"][rows])
    if experts := space.problem.gpt.moe.experts:
        columns.append(np.minimum(experts // space.columns["ep"][rows], 2))
        own = {key: space.columns[key][rows] for key in (*FOLDED, "ep", "etp")}
        columns += [np.minimum(part, 2) for fold in folds_of(own).values() for part in fold]
    if isinstance(space.problem.gpt, RoutedGPT):  # whose busiest rank follows from how many share
        columns.append(space.columns["ep"][rows])
    if not together:
        columns.append(np.minimum(space.micro_batches[rows], MOST))
    code = np.zeros(len(rows), dtype=np.int64)  # all columns in one number
    for column in columns:
        code = code * (int(column.max(initial=0)) + 1) + column
    order = np.argsort(code, kind="stable")
    ends = np.flatnonzero(np.diff(code[order])) + 1
    return np.split(rows[order], ends) if len(rows) else []


def _has_steps(problem: SearchProblem) -> bool:
    """Whether programs of plans have as many steps as ranks of context, or pieces of documents."""
    ring = problem.fixed.get("context_kind", "ring") == "ring"
    return ring or problem.behaviour.context_steps or bool(problem.gpt.packing.documents)


def sized(
    space: Space, rows: Indices, *, together: bool = False, **how: Any
) -> Iterator[BatchedProgram]:
    """The programs of these rows, each of them in one of the answers; `how` has fields of the plan
    in place of the usual ones, and the stack's behaviour. With `together` (see `kinds`) rows of one
    micro-batch may be with a program of two (`part_times.of_one_micro_batch`)."""
    waiting = kinds(space, rows, together=together)[::-1]
    while waiting:
        some = waiting.pop()
        try:
            program, steps = _lowered(space, some, **how), current_session().the(SharedSteps).steps
            yield BatchedProgram(some, program, space.orders_of(some), steps)
        except UnequalLanesError as error:
            waiting += [some[error.aside], some[~error.aside]]


def _lowered(
    space: Space,
    rows: Indices,
    overlap: tuple[str, ...] = OVERLAPS,
    schedule: str = "1f1b",
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
    most: int = MOST,
) -> Program:
    """A stage's program is that of a pipeline of one stage, but for its ends."""
    fields = space.shape(int(rows[0])) | {"pp": 1, "overlap": overlap}
    # Of GPipe a backward pass begins with what the forward pass left, as that of 1F1B.
    fields["schedule"] = "1f1b" if schedule == "gpipe" else schedule
    inputs = current_session().the(SharedSteps).inputs(columns_of(space, rows))
    fields |= dict(zip(SIZES, inputs, strict=True))
    micro_batches = min(max(int(space.micro_batches[rows].max()), 1), most)
    batch = micro_batches * fields["mbs"] * prod(fields[a] for a in SHARDS["sequences"])
    gpt = base_of(space.problem.gpt)
    plan = Plan.of(**fields, **space.problem.others, batch=batch)
    behaviour = of_rows(behaviour, space, rows)
    program = lower(gpt, plan, behaviour=within_parts(behaviour))
    program = replace(program, known_nbytes=program.nbytes)  # each size is worked out once
    return replace(program, ops=tuple(op for op in program.ops if not is_left_out(op, behaviour)))


def sizes_of(space: Space, rows: Indices) -> bytes:
    """The inputs of lowering of some rows in one value: those of others are equal if theirs is."""
    return b"".join(column.tobytes() for column in columns_of(space, rows))


def columns_of(space: Space, rows: Indices) -> list[Counts]:
    """The inputs of lowering, a column of rows for each."""
    return [space.columns[key][rows] for key in SIZES]


def input_columns(space: Space, rows: Indices, inputs: int) -> list[Counts]:
    """Some inputs of lowering (`Lanes.inputs`), a column of rows for each."""
    return [space.columns[key][rows] for at, key in enumerate(SIZES) if inputs >> at & 1]


def within_parts(behaviour: StackBehaviour) -> StackBehaviour:
    """The behaviour that changes no op of one part of the model by what another part has. Copies
    around ops only add to these, and are left out."""
    return replace(behaviour, coalesced=False, whole_owners=False, gathers_ahead=False, copies=())


def of_rows(behaviour: StackBehaviour, space: Space, rows: Indices) -> StackBehaviour:
    """The behaviour of some rows, none or all of which are pipelines: others do nothing once a step
    that they would do for each micro-batch. Nothing is cast for reductions that are left out."""
    once = behaviour.once_a_step and bool((space.columns["pp"][rows] > 1).any())
    return replace(
        behaviour, once_a_step=once, reduce_dtype=TRAINING if once else behaviour.reduce_dtype
    )


def is_left_out(op: Op, behaviour: StackBehaviour) -> bool:
    """Whether a bound leaves an op out, as the stack merges it with those of other parts, or moves
    it beside them: no program of few layers says what it then takes. One of each micro-batch that
    pipelines perform once a step is left out too."""
    if behaviour.once_a_step and op.purpose in (WEIGHT_GATHER, GRAD_SCATTER):
        return True
    merged = behaviour.coalesced or behaviour.whole_owners
    if merged and op.purpose in (BUCKET_SCATTER, PARAMETER_GATHER):
        return True
    return behaviour.gathers_ahead and op.purpose == WEIGHT_GATHER and op.block.phase == FORWARD


def differs_apart(op: Op, some: BatchedProgram) -> bool:
    """Whether an op of one stage is another one where the model's ends are apart and both have the
    embedding's table: the first addition to its gradient overwrites that; and what is sent of the
    head's parameters and gradients is sent with the table, and more may be faster than less."""
    gpt = some.program.gpt
    if gpt.mtp.layers and op.purpose in OF_TABLES:
        return kind_of(op.part, gpt) == HEAD.kind
    shared = gpt.tied or gpt.mtp.layers > 0
    return shared and op.kind == "accumulate" and op.block.part == EMBED
