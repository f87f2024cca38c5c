"""The legal plans of a model on so many devices, as arrays: one entry for each shape.

A shape is everything about a plan that changes what it computes, but not in which order: the five
axes, the micro-batch, zero, recompute and sequence_parallel. To a shape belong the orders in which
it can run: schedules, interleaves, overlaps and rank orders. Two texts of the same program count
once: a switch of `overlap` without anything to overlap stays on, what splits a data axis of one
rank stays 0, and an axis of one rank stays where it usually is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.search.problem import (
    SHAPE,
    SearchProblem,
    chunks_fit,
    divisors,
    recomputes,
    schedules,
)
from simulator.search.rank_orders import ANY, ORDERS, rank_orders
from workload.errors import PlanCannotRunError
from workload.grid import AXES, USUAL
from workload.lowering import check
from workload.passes.table import OVERLAPS, PASSES
from workload.plan import Plan

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
SIZES = SHAPE[:7]  # of these keys the values are numbers


@dataclass(frozen=True)
class Order:
    """In which order a shape runs, and its ranks stand on the axes."""

    schedule: str
    interleave: int
    overlap: tuple[str, ...]
    ranks: str = USUAL


@dataclass(frozen=True)
class Space:
    """Every legal shape of a question: `columns` has an array for each key of SHAPE, with recompute
    as its place in RECOMPUTES."""

    question: SearchProblem
    columns: Mapping[str, Ints]

    def __len__(self) -> int:
        return len(self.columns["x"])

    def only(self, rows: Ints) -> Space:
        """A part of it."""
        return Space(self.question, {key: column[rows] for key, column in self.columns.items()})

    @cached_property
    def micro_batches(self) -> Ints:
        """How many micro-batches a rank of each shape runs."""
        c = self.columns
        return np.asarray(self.question.batch // (c["z"] * c["data"] * c["micro_batch"]))

    def shape(self, at: int) -> dict[str, Any]:
        """One shape's fields of the plan."""
        fields: dict[str, Any] = {key: int(self.columns[key][at]) for key in SHAPE}
        fields["recompute"] = self._recompute_of[fields["recompute"]]
        fields["sequence_parallel"] = bool(fields["sequence_parallel"])
        return fields

    @property
    def _recompute_of(self) -> list[str]:
        return recomputes(self.question)

    def plan(self, at: int, order: Order) -> Plan:
        """One plan of the space."""
        return Plan(
            **self.shape(at),
            **self.question.others,
            batch=self.question.batch,
            schedule=order.schedule,
            interleave=order.interleave,
            overlap=order.overlap,
            order=order.ranks,
        )

    @cached_property
    def grids(self) -> tuple[Ints, Ints]:
        """The different grids, a column for each, and which of them each shape has."""
        every = np.stack([self.columns[axis] for axis in AXES])
        table, which = np.unique(every, axis=1, return_inverse=True)
        return table, np.asarray(which.ravel(), dtype=np.int64)

    def rank_orders(self, at: int) -> Sequence[str]:
        """In which orders the ranks of a shape can stand."""
        sizes = {axis: int(self.columns[axis][at]) for axis in AXES}
        return self.question.choices("order", rank_orders(sizes))

    def orders_of(self, rows: Ints) -> Ints:
        """The number of the order in which the ranks of each shape stand, or ANY."""
        order = self.question.fixed.get("order")
        return np.full(len(rows), ANY if order is None else ORDERS.index(order), dtype=np.int64)

    @cached_property
    def orders(self) -> Ints:
        """In how many orders each shape can run."""
        c, count = self.columns, np.ones(len(self), dtype=np.int64)
        if "overlap" not in self.question.fixed:
            for flags in _matters(self.question, c).values():
                count *= 1 + flags
        if "order" not in self.question.fixed:
            wide = np.sum([c[axis] > 1 for axis in AXES], axis=0)
            count *= np.array([factorial(axes) for axes in range(len(AXES) + 1)])[wide]
        pairs = np.stack([c["pipe"], self.micro_batches])
        alike, which = np.unique(pairs, axis=1, return_inverse=True)
        runs = [len(schedules(self.question, int(p), int(m))) for p, m in alike.T]
        return np.asarray(count * np.array(runs, dtype=np.int64)[which.ravel()])

    @property
    def plans(self) -> int:
        """How many plans there are."""
        return int(self.orders.sum())


def overlaps(question: SearchProblem, shape: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The overlaps that tell plans of a shape apart, all of them first."""
    if "overlap" in question.fixed:
        return [question.fixed["overlap"]]
    columns = {key: np.array([shape[key]]) for key in ("x", "y", "z", "data", "pipe", "zero")}
    switches = [key for key, flags in _matters(question, columns).items() if flags[0]]
    offs = [off for count in range(len(switches) + 1) for off in combinations(switches, count)]
    return [tuple(switch for switch in OVERLAPS if switch not in off) for off in offs]


def _matters(question: SearchProblem, columns: Mapping[str, Ints]) -> dict[str, Flags]:
    """For each switch of `overlap` which shapes have something that it overlaps."""
    shard = question.fixed.get("shard", 0) or columns["data"]
    sizes = {**columns, "shard": shard, "zero": np.where(shard > 1, columns["zero"], 0)}
    return {each.name: each.matters(sizes) for each in PASSES}


def space_of(question: SearchProblem) -> Space:
    """Every legal shape; a PlanCannotRunError where there is none."""
    if not (rows := list(_rows(question))):
        raise PlanCannotRunError(_none(question))
    table = np.array(rows, dtype=np.int64).T
    space = Space(question, dict(zip(SHAPE, table, strict=True)))
    _checked(space)
    return space


def _rows(question: SearchProblem) -> Iterator[tuple[int, ...]]:
    gpt, n = question.gpt, question.devices
    heads = [gpt.heads, gpt.ffn, *([gpt.kv_heads] if gpt.kv_heads else [])]
    sizes = divisors(n)
    xs = [x for x in question.choices("x", sizes) if all(width % x == 0 for width in heads)]
    ys = [y for y in question.choices("y", sizes) if gpt.hidden % y == 0]
    pipes = [p for p in question.choices("pipe", sizes) if chunks_fit(question, p)]
    zs = question.choices("z", sizes)
    for x, y, z, pipe in product(xs, ys, zs, pipes):
        data, left = divmod(n, x * y * z * pipe)
        if left or not data or data not in question.choices("data", [data]):
            continue
        if question.batch % (z * data):
            continue
        yield from _of_grid(question, (x, y, z, data, pipe))


def _none(question: SearchProblem) -> str:
    """Why there is no plan: a field that is fixed, if there are plans without it."""
    none = f"no plan of {question.gpt.name} uses {question.devices} devices"
    none = f"{none} with a batch of {question.batch}"
    for key, value in question.fixed.items():
        rest = {name: other for name, other in question.fixed.items() if name != key}
        free = list(_rows(replace(question, fixed=rest)))
        if free and key in SIZES:
            able = sorted({row[SHAPE.index(key)] for row in free})
            return f"{none} and {key}={value}; {key} may be {', '.join(map(str, able))}"
        if free:
            return f"{none} and {key}={value}; without {key} there are some"
    if question.fixed:
        none = f"{none} and the fields that are fixed"
    return (
        f"{none}; z*data must divide the batch, x the heads, y the hidden width and pipe the layers"
    )


def _of_grid(question: SearchProblem, grid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    x, y, z, data, pipe = grid
    per_rank = question.batch // (z * data)
    zeros = question.choices("zero", range(4) if data > 1 else [0])
    if shard := question.fixed.get("shard", 0):
        zeros = [zero for zero in zeros if zero and data % shard == 0]
        zeros = zeros[:1] if shard == 1 else zeros  # nothing is split, whatever zero says
    kinds = range(len(recomputes(question)))
    for micro_batch in question.choices("micro_batch", divisors(per_rank)):
        if per_rank % micro_batch or not schedules(question, pipe, per_rank // micro_batch):
            continue
        splits = micro_batch * question.gpt.sequence % x == 0 and y == 1
        rows = [False, True] if splits and x > 1 else [False]
        for zero, recompute, parallel in product(
            zeros, kinds, question.choices("sequence_parallel", rows)
        ):
            if not parallel or (splits and y == 1):
                yield (*grid, micro_batch, zero, recompute, int(parallel))


def _checked(space: Space) -> None:
    """Refuse what is fixed and fits no plan, in the plan's own words: the first plan stands for
    all."""
    shape = space.shape(0)
    schedule, interleave = schedules(space.question, shape["pipe"], int(space.micro_batches[0]))[0]
    plan = space.plan(0, Order(schedule, interleave, overlaps(space.question, shape)[0]))
    check(space.question.gpt, plan)
