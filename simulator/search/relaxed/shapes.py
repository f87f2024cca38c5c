"""Relaxed shapes: each without what only adds to a step, and so one for many shapes of a space.

Left out are ZeRO, recomputation of parts of layers, additions to gradients and all that follows the
slots: what remains are ops that all these shapes have in the slots of each micro-batch, with the
same sizes, on groups of the same ranks. So what they take at least bounds all the shapes, whatever
these have beside them (`tests/simulator/search/test_relaxed.py`). Shapes with ZeRO-3 gather weights
and sum their gradients over more ranks than others, so these are bounded apart. A vocabulary whose
rows are padded for ZeRO has other sizes, which may be faster: such shapes are bounded by no other.
Further relaxed, a shape has the exchanges of keys and values alone, in which layers with experts
and others are alike.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from simulator.search.asked.falling_times import may_fall
from simulator.search.asked.turns import least_ticks
from simulator.search.bounds.batched_programs import BatchedProgram, kinds, sized
from simulator.search.bounds.layer_kinds import LAYER, attends_differently, names_of
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.part_times import STEP_WORKS, PartTimes, part_times
from simulator.search.bounds.peak_memory import ADDITIONS
from simulator.search.bounds.stream_bound import BusiestStream, Entries, joined
from simulator.search.bounds.unsupported import RefusalTimes
from simulator.search.objective import Objective
from simulator.search.problem import SearchProblem
from simulator.search.root_nodes import Machinery, entries_of
from simulator.search.space import Space
from simulator.search.tree_nodes import alike, in_every_order, with_each_axis_first
from topologies.records import record
from workload.expert_loads.histogram import RoutedGPT
from workload.gpt import GPT
from workload.op import GRAD_SCATTER, KEYS_EXCHANGE, WEIGHT_GATHER, Op
from workload.recipes.table import NO_RECIPE
from workload.sizes.arrays import Counts, Flags, Indices, Values, distinct

NONE, FULL = "none", "full"
OF_WEIGHTS = (WEIGHT_GATHER, GRAD_SCATTER)
WHOLE = 3  # the stage of ZeRO in which weights are split over data, too


@record(slots=False)
class RelaxedShapes:
    """The relaxed shapes of a space, one for each row of `shapes`; `of_row` says which of them each
    row of the space has. They are lowered as those of `lowered`: without ZeRO-3, and with it. `has`
    says of each whether it has rows without it, and with it, (2, shapes). If `exchanges` is true,
    they are lowered once, and of their ops only exchanges of keys and values count. `apart` are
    rows of the space whose other ops have other sizes."""

    shapes: Space
    lowered: tuple[Space, ...]
    of_row: Indices
    has: Flags
    apart: Flags
    op_bounds: OpBounds
    refusals: RefusalTimes
    objective: Objective
    exchanges: bool

    @cached_property
    def parts(self) -> list[Indices]:
        """The relaxed shapes in parts that are lowered together, the largest first."""
        every = np.arange(len(self.shapes), dtype=np.int64)
        return sorted(kinds(self.lowered[0], every, together=True), key=len, reverse=True)

    def low(self, rows: Indices, threshold: int) -> Flags:
        """Which of some relaxed shapes of one part may have a value below a threshold, by how they
        are `lowered`, (2, rows) or (1, rows): without what is done with weights, then with it in
        some order of ranks, if not exchanges alone count. Where the machine has no times for one,
        it may."""
        flags, habits = np.zeros_like(self.has), self.shapes.problem.habits
        how: dict[str, Any] = {"together": True, "habits": habits, "most": 1}
        for every in sized(self.lowered[0], rows, **how):
            timed = self._timed(every, flags)
            if not timed.any():
                continue
            bare = self.counted(some := every.only(timed), of_weights=False)
            entries = joined([*entries_of(self.shapes, some.rows)])
            below = self._bounds(self._times(bare), entries) < threshold
            left = entries.only(below, some.rows[entries.lane[below]])
            low = np.unique(left.lane)
            if self.exchanges:
                flags[0, low] = True
                continue
            self._low_in_an_order(some, left, flags[0], threshold)
            for whole in sized(self.lowered[1], low[self.has[1, low]], **how):
                timed = self._timed(whole, flags[1:])
                if timed.any():
                    self._low_in_an_order(whole.only(timed), left, flags[1], threshold)
        return flags[:, rows]

    def _timed(self, some: BatchedProgram, flags: Flags) -> Flags:
        """Which of some rows the machine has times for; flag the others."""
        untimed = [each.rows for each in self.refusals.against(self.shapes, some)]
        each = [row for rows in untimed for row in rows]
        flags[:, each] = True
        return ~np.isin(some.rows, each)

    def _low_in_an_order(
        self, some: BatchedProgram, left: Entries, found: Flags, threshold: int
    ) -> None:
        """Flag which of some relaxed shapes are below a threshold in some order of their ranks, of
        the entries, whose lanes are rows of `shapes`."""
        keep = np.isin(left.lane, some.rows)
        own = left.only(keep, np.searchsorted(some.rows, left.lane[keep]))
        each: BatchedProgram = self.counted(some)
        for orders in (with_each_axis_first, in_every_order):
            if len(own.lane):
                each, own = orders(self.shapes, each, own)
                if orders is in_every_order:  # before, those alike have other orders each
                    each, own, _ = alike(each, own, self.op_bounds.rings)
                below = self._bounds(self._times(each), own) < threshold
                own = own.only(below, own.lane[below])
        found[each.rows[own.lane]] = True

    def counted(self, some: BatchedProgram, *, of_weights: bool = True) -> BatchedProgram:
        """The program with the ops that count, among them those `of_weights` or not."""

        def counts(op: Op) -> bool:
            if self.exchanges:
                return op.purpose == KEYS_EXCHANGE
            weighs = of_weights and self.weighs
            return op.kind not in ADDITIONS and (weighs or op.purpose not in OF_WEIGHTS)

        program = replace(some.program, ops=tuple(filter(counts, some.program.ops)))
        return replace(some, program=program, notes={})

    @cached_property
    def weighs(self) -> bool:
        """Whether ops of weights count: zeros behind these differ by what ZeRO splits them over,
        and of a few bytes more or less the more may take less time on some machines."""
        machine = self.op_bounds.fabric.machine
        return not may_fall(machine, "all_gather", "reduce_scatter")

    def _bounds(self, known: PartTimes, entries: Entries) -> Values:
        found = np.zeros(len(entries.lane), dtype=np.int64)
        for at in entries.sorts():
            busiest = BusiestStream(known, entries.only(at, entries.lane[at]), None)
            ticks = least_ticks(self.shapes.problem, busiest)
            found[at] = self.objective.bound(ticks, busiest.busy())
        return found

    def _times(self, some: BatchedProgram) -> PartTimes:
        known = part_times(self.op_bounds, some)
        known = {key: own for key, own in known.items() if key[1] not in STEP_WORKS}
        if not self.exchanges:
            return known
        names = names_of(self.shapes.problem.gpt)
        of_layer = {key[1:]: own for key, own in known.items() if key[0] == LAYER}
        return {(name, *key): own for name in names for key, own in of_layer.items()}


def is_relaxed(problem: SearchProblem) -> bool:
    """Whether relaxed shapes bound those of a problem. Casts of a recipe, what is offloaded, chunks
    of a loss, and the busiest rank of experts' uneven loads follow from more than these have."""
    plain = problem.fixed.get("recipe", NO_RECIPE) == NO_RECIPE
    kept = problem.fixed.get("offload", "none") == "none"
    kept = kept and problem.fixed.get("loss_chunks", 1) == 1
    return plain and kept and not isinstance(problem.gpt, RoutedGPT)


def without_additions(space: Space, machinery: Machinery, objective: Objective) -> RelaxedShapes:
    """The shapes of a space without ZeRO and recomputation of parts of layers."""
    columns = {**space.columns, **_relaxed_columns(space)}
    first, which = distinct(list(columns.values()))
    shapes = Space(space.problem, {key: column[first] for key, column in columns.items()})
    whole = space.columns["zero"] == WHOLE
    has = [np.bincount(which[own], minlength=len(shapes)) > 0 for own in (~whole, whole)]
    lowered = as_lowered(shapes), _with_whole_weights(shapes)
    # Shapes with ZeRO-3 are bounded as the others first, and have their own rows when lowered so.
    apart = vocabulary_rows(lowered[0])[which] - vocabulary_rows(space) != 0
    how = *_bounded(shapes, machinery), objective
    return RelaxedShapes(shapes, lowered, which, np.array(has), apart, *how, exchanges=False)


def of_exchanges(relaxed: RelaxedShapes, machinery: Machinery) -> RelaxedShapes | None:
    """Relaxed shapes with exchanges of keys and values alone, of others; None where layers differ
    in how they attend, where experts must be split, or where no plan exchanges any."""
    space, gpt = relaxed.shapes, relaxed.shapes.problem.gpt
    apart = attends_differently(gpt) or bool(space.problem.of_exchanges)
    if apart or bool((space.columns["cp"] == 1).all()):
        return None
    columns = {**space.columns, "ep": np.ones(len(space), dtype=np.int64)}
    columns["etp"] = np.zeros(len(space), dtype=np.int64)
    names = space.problem.recomputations
    if NONE in names:
        columns["recompute"] = np.full_like(columns["recompute"], names.index(NONE))
    first, which = distinct(list(columns.values()))
    shapes = Space(space.problem, {key: column[first] for key, column in columns.items()})
    lowered = replace(as_lowered(shapes), problem=replace(space.problem, gpt=_of_one_layer(gpt)))
    has, none = np.ones((1, len(shapes)), dtype=bool), np.zeros(len(space), dtype=bool)
    how = *_bounded(shapes, machinery), relaxed.objective
    return RelaxedShapes(shapes, (lowered,), which, has, none, *how, exchanges=True)


def _bounded(shapes: Space, machinery: Machinery) -> tuple[OpBounds, RefusalTimes]:
    how = machinery.costs, machinery.fabric
    return OpBounds(shapes, *how), RefusalTimes(*how)


def _with_whole_weights(space: Space) -> Space:
    """Relaxed shapes as they are lowered with ZeRO-3, whose collectives have sizes by z."""
    columns = {**space.columns, **_relaxed_columns(space)}
    return Space(space.problem, {**columns, "zero": np.full_like(columns["zero"], WHOLE)})


def vocabulary_rows(space: Space) -> Counts:
    """Rows of the vocabulary that a rank has in each shape, padded so that what shards the
    optimizer's state splits its table evenly
    (`workload/lowering/layers/vocabulary.py:padded_vocabulary`)."""
    c, gpt = space.columns, space.problem.gpt
    shard = space.problem.fixed.get("shard", 0) or c["dp"]
    parts = c["z"] * np.where(c["zero"] > 0, c["cp"] * shard, 1)
    least, step = -(-gpt.vocab // (c["tp"] * c["y"])), parts // np.gcd(parts, gpt.hidden)
    return np.asarray(-(-least // step) * step)


def as_lowered(space: Space) -> Space:
    """The rows of a space as their relaxed shapes are lowered without ZeRO-3: with z of several
    ranks, since on one its collectives take no time, and with more ranks of data, which change
    nothing but the sums over these."""
    columns = {**space.columns, **_relaxed_columns(space)}
    wide = {"z": np.maximum(columns["z"], 2), "dp": 2 * columns["dp"]}
    return Space(space.problem, {**columns, **wide})


def _relaxed_columns(space: Space) -> dict[str, Counts]:
    """What relaxed shapes have in place of a space's own columns."""
    names = space.problem.recomputations
    recompute, zero = (space.columns[key] for key in ("recompute", "zero"))
    if NONE in names:
        full = names.index(FULL) if FULL in names else -1
        recompute = np.where(recompute == full, full, names.index(NONE))
    # With ZeRO-2 what sums gradients over data depends on z; a part of data that shards needs some.
    return {"recompute": recompute, "zero": np.full_like(zero, min(zero.min(initial=WHOLE), 1))}


def _of_one_layer(gpt: GPT) -> GPT:
    """A model with one layer, without experts."""
    dense = 1 if gpt.experts else 0
    own = replace(gpt, layers=1, dense_layers=dense, expert_every=1)
    return replace(own, mtp_layers=0, mtp_shared=False)
