"""The legal plans of a model on so many devices, as arrays: one entry for each shape.

A shape is everything about a plan that changes what it computes, but not in which order: the axes,
the micro-batch, zero, recompute, sp and how experts are split. To a shape belong the
orders in which it can run: schedules, interleaves, overlaps and rank orders. Two texts of the same
program count once: a switch of `overlap` without anything to overlap stays on, what splits a data
axis of one rank stays 0, and an axis of one rank stays where it usually is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np

from simulator.search.allowed_rows import that_run
from simulator.search.bounds.layouts import Layouts, layouts_of
from simulator.search.expert_splits import RUNS, runs_of, splits_of
from simulator.search.families import codes_of
from simulator.search.orders import ANY, NUMBER_OF, ORDERS, matters, orders_of, overlaps
from simulator.search.problem import (
    SHAPE,
    SearchProblem,
    chunks_fit,
    divisors,
    recomputes,
    schedules,
)
from simulator.stacks.stage_split import SPLIT
from topologies.records import record
from workload.errors import PlanCannotRunError, PlanError
from workload.exchange.table import USUAL as AS_USUAL
from workload.grid import AXES, SHARDS, USUAL, axes_of, order_of
from workload.lowering import check
from workload.lowering.divisibility import splits_experts
from workload.plan import Plan, text_of
from workload.recipes.table import NO_RECIPE
from workload.sizes.arrays import Counts, Indices, distinct
from workload.stages import nearly_even

SIZES = (*AXES, "mbs", "zero")  # of these keys the values are numbers


@record(slots=False)
class Order:
    """In which order a shape runs, and its ranks stand on the axes."""

    schedule: str
    vpp: int
    overlap: tuple[str, ...]
    ranks: str = USUAL
    dispatcher: str = AS_USUAL


@record(slots=False)
class Space:
    """Every legal shape of a question: `columns` has an array for each key of SHAPE, with recompute
    as its place among those of the problem."""

    problem: SearchProblem
    columns: Mapping[str, Counts]

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def only(self, rows: Indices) -> Space:
        """A part of it."""
        return Space(self.problem, {key: column[rows] for key, column in self.columns.items()})

    @cached_property
    def micro_batches(self) -> Counts:
        """How many micro-batches a rank of each shape runs."""
        c = self.columns
        return np.asarray(
            self.problem.batch // (c["mbs"] * prod(c[axis] for axis in SHARDS["sequences"]))
        )

    def shape(self, at: int) -> dict[str, Any]:
        """One shape's fields of the plan."""
        fields: dict[str, Any] = {key: int(self.columns[key][at]) for key in SHAPE}
        fields["recompute"] = recomputes(self.problem)[fields["recompute"]]
        fields["sp"] = bool(fields["sp"])
        return fields

    def plan(self, at: int, order: Order) -> Plan:
        """One plan of the space."""
        fields = {**self.shape(at), **self.problem.others}
        chunks = fields["pp"] * order.vpp
        split = fields["pp"] > 1 and order.vpp == 1
        unlike = split and SPLIT in self.problem.stack.plan  # even splits must be said
        if self.problem.gpt.layers % chunks or unlike:
            fields["stage_layers"] = nearly_even(self.problem.gpt.layers, chunks)
        return Plan.of(
            **fields,
            batch=self.problem.batch,
            schedule=order.schedule,
            vpp=order.vpp,
            overlap=order.overlap,
            order=order.ranks,
            dispatcher=order.dispatcher,
        )

    def dispatchers(self, at: int) -> Sequence[str]:
        """By which dispatchers a shape can run."""
        return self.problem.dispatchers if self.columns["ep"][at] > 1 else [AS_USUAL]

    @cached_property
    def layouts(self) -> Layouts | None:
        """How layers lie in chunks, for a model with several kinds of them."""
        stages = np.stack([self.columns["pp"], self.micro_batches])
        alike = np.unique(stages[:, distinct(list(stages))[0]], axis=1)
        pairs = {
            (pp, vpp): None
            for pp, each in alike.T.tolist()
            for _, vpp in schedules(self.problem, pp, each)
        }
        return layouts_of(self.problem.gpt, pairs)

    def runs(self, rows: Indices) -> dict[str, Counts]:
        """For some shapes the runs of neighbours that experts or heads make of x, context and data
        (`expert_splits.py`)."""
        table, which = self.grids
        return dict(zip(RUNS, table[len(AXES) :, which[rows]], strict=True))

    @cached_property
    def grids(self) -> tuple[Indices, Indices]:
        """The different grids, a column for each with the sizes of all axes and the numbers of
        RUNS, and which of them each shape has."""
        runs = runs_of(self.columns)
        columns = [*(self.columns[axis] for axis in AXES), *(runs[key] for key in RUNS)]
        first, which = distinct(columns)
        return np.stack([column[first] for column in columns]), which

    def rank_orders(self, at: int) -> Sequence[str]:
        """In which orders the ranks of a shape can stand."""
        sizes = {axis: int(self.columns[axis][at]) for axis in AXES}
        return self.problem.choices("order", orders_of(self.problem, sizes))

    def order_numbers(self, at: int) -> Sequence[int]:
        """The numbers of these orders; one may be given with all axes."""
        return [NUMBER_OF[order_of(axes_of(order))] for order in self.rank_orders(at)]

    def orders_of(self, rows: Indices) -> Counts:
        """The number of the order in which the ranks of each shape stand, or ANY."""
        order = self.problem.fixed.get("order")
        number = ANY if order is None else ORDERS.index(order_of(axes_of(order)))
        return np.full(len(rows), number, dtype=np.int64)

    @cached_property
    def orders(self) -> Counts:
        """In how many orders each shape can run."""
        c, count = self.columns, np.ones(len(self), dtype=np.int64)
        count[c["ep"] > 1] *= len(self.problem.dispatchers)
        if "overlap" not in self.problem.fixed:
            for flags in matters(self.problem, c).values():
                count *= 1 + flags
        if "order" not in self.problem.fixed:
            one, kind = distinct([(c[axis] > 1).astype(np.int64) for axis in AXES])
            count *= np.array([len(self.rank_orders(at)) for at in one])[kind]
        first, which = distinct([c["pp"], micro_batches := self.micro_batches])
        alike = ((int(c["pp"][at]), int(micro_batches[at])) for at in first)
        runs = [len(schedules(self.problem, *pair)) for pair in alike]
        return np.asarray(count * np.array(runs, dtype=np.int64)[which])

    @cached_property
    def families(self) -> Counts:
        """The family of plans to which each shape belongs (`families.py`), as a number."""
        return codes_of(self.columns)

    @property
    def plans(self) -> int:
        """How many plans there are."""
        return int(self.orders.sum())


def space_of(problem: SearchProblem) -> Space:
    """Every legal shape; a PlanCannotRunError where there is none."""
    if not (tables := list(_rows(problem))):
        raise PlanCannotRunError(_none(problem))
    space = Space(problem, dict(zip(SHAPE, np.concatenate(tables).T.copy(), strict=True)))
    _checked(space)
    return space


def spaces_of(problem: SearchProblem) -> list[Space]:
    """The spaces of a problem's parts with a plan; a PlanCannotRunError where none has, or none
    with one of several values that are asked for."""
    named = ["recipe", *(key for key in problem.several if key != "dispatcher")]
    found, refused = list[Space](), dict[tuple[Any, ...], PlanCannotRunError | None]()
    for part in problem.parts():
        asked = tuple(part.fixed.get(key) for key in named)
        try:
            found.append(space_of(part))
            refused[asked] = None
        except PlanCannotRunError as error:
            refused.setdefault(asked, error)
    for lacking in filter(None, refused.values()):
        raise lacking
    return found


def _rows(problem: SearchProblem) -> Iterator[Counts]:
    """The legal shapes in tables, each with a row for a shape and a column for a key of SHAPE."""
    gpt, n, recipe = problem.gpt, problem.devices, problem.fixed.get("recipe", NO_RECIPE)
    heads = [
        gpt.attention.heads,
        gpt.ffn,
        gpt.moe.shared_ffn,
        *([gpt.attention.kv_heads] if gpt.attention.kv_heads else []),
    ]
    sizes = divisors(n)
    xs = [x for x in problem.choices("tp", sizes) if all(width % x == 0 for width in heads)]
    whole = (
        1 if gpt.latent.kv_rank or gpt.moe.expert_latent else gpt.hidden
    )  # latents are of whole rows
    ys = [y for y in problem.choices("y", sizes) if whole % y == 0]
    ys = [y for y in ys if splits_experts(gpt, recipe, "hidden", y)]
    pipes = [p for p in problem.choices("pp", sizes) if chunks_fit(problem, p)]
    zs = problem.choices("z", sizes)
    contexts = [c for c in problem.choices("cp", sizes) if _splits(problem, c)]
    contexts = [c for c in contexts if c >= problem.least_context]
    by_heads = problem.fixed.get("context_kind") == "ulysses"
    for x, y, z, context, pp in product(xs, ys, zs, contexts, pipes):
        data, left = divmod(n, x * y * z * context * pp)
        if left or not data or data not in problem.choices("dp", [data]):
            continue
        if problem.batch % (z * data):
            continue
        if (
            context > 1
            and by_heads
            and any(n % (x * context) for n in (gpt.attention.heads, gpt.attention.kv_heads))
        ):
            continue
        yield from _of_grid(problem, (x, y, z, context, data, pp))


def _splits(problem: SearchProblem, context: int) -> bool:
    """Whether sequences can be split over so many ranks, and the attention core with them."""
    gpt, fused = problem.gpt, problem.fixed.get("attention", "flash") != "unfused"
    return context == 1 or (fused and gpt.sequence % (2 * context) == 0)


def _none(problem: SearchProblem) -> str:
    """Why there is no plan: a field that is fixed, if there are plans without it."""
    none = f"no plan of {problem.gpt.name} uses {problem.devices} devices"
    none = f"{none} with a batch of {problem.batch}"
    for key, value in problem.fixed.items():
        rest = {name: other for name, other in problem.fixed.items() if name != key}
        try:
            free = list(_rows(replace(problem, fixed=rest)))
        except PlanError:  # other fields want this one
            continue
        if free and key in SIZES:
            able = np.unique(np.concatenate(free)[:, SHAPE.index(key)]).tolist()
            return f"{none} and {key}={text_of(value)}; {key} may be {', '.join(map(str, able))}"
        if free:
            return f"{none} and {key}={text_of(value)}; without {key} there are some"
    if problem.fixed:
        none = f"{none} and the fields that are fixed"
    return f"{none}; z*dp must divide the batch, tp the heads, y the hidden width and pp the layers"


def _of_grid(problem: SearchProblem, grid: tuple[int, ...]) -> Iterator[Counts]:
    x, y, z, context, data, pp = grid
    per_rank = problem.batch // (z * data)
    zeros = problem.choices("zero", range(4) if data * context > 1 else [0])
    if shard := problem.fixed.get("shard", 0):
        zeros = [zero for zero in zeros if zero and data % shard == 0]
        zeros = zeros[:1] if shard * context == 1 else zeros  # nothing is split, whatever zero says
    kinds = range(len(recomputes(problem)))
    experts = [list(splits_of(problem, x, (context, data), parallel=p)) for p in (False, True)]
    known: dict[bool, Counts] = {}
    for micro_batch in problem.choices("mbs", divisors(per_rank)):
        if per_rank % micro_batch or not schedules(problem, pp, per_rank // micro_batch):
            continue
        rows = micro_batch * problem.gpt.sequence // context
        if rows % problem.fixed.get("loss_chunks", 1):
            continue
        splits = rows % x == 0 and y == 1
        if splits not in known:
            by_rows = [False, True] if splits and x > 1 else [False]
            by_rows = [p for p in problem.choices("sp", by_rows) if splits or not p]
            every = product(zeros, kinds, [(p, *split) for p in by_rows for split in experts[p]])
            table = [(*some, *rest) for *some, rest in every]
            known[splits] = that_run(problem.stack, problem.gpt, problem.fixed, grid, table)
        if len(rest := known[splits]):
            first = np.broadcast_to(np.array([*grid, micro_batch]), (len(rest), len(grid) + 1))
            yield np.concatenate([first, rest], axis=1)


def _checked(space: Space) -> None:
    """Refuse what is fixed and fits no plan, in the plan's own words: the first plan stands for
    all."""
    shape = space.shape(0)
    schedule, vpp = schedules(space.problem, shape["pp"], int(space.micro_batches[0]))[0]
    plan = space.plan(0, Order(schedule, vpp, overlaps(space.problem, shape)[0]))
    check(space.problem.gpt, plan)
