"""The rows of a space that have no bound yet: relaxed shapes rule out most of them."""

from __future__ import annotations

from collections import deque
from functools import cached_property

import numpy as np

from simulator.search.bounds.batched_programs import kinds
from simulator.search.objective import Objective
from simulator.search.relaxed.shapes import (
    WHOLE,
    RelaxedShapes,
    as_lowered,
    is_relaxed,
    of_exchanges,
    without_additions,
)
from simulator.search.root_nodes import NEVER, WORTH, Machinery, parts_of
from simulator.search.space import Space
from topologies.records import record
from workload.sizes.arrays import Flags, Indices

MANY = 300  # programs of a space, fewer of which are lowered as fast as relaxed ones rule any out


def relaxes(space: Space) -> bool:
    """Whether a space is bounded sooner where relaxed shapes rule out rows of it before."""
    if len(space) < WORTH or not is_relaxed(space.problem):
        return False
    return len(kinds(space, np.arange(len(space), dtype=np.int64), together=True)) >= MANY


def share_of(space: Space, number: int, count: int) -> Space:
    """The rows of one of so many shares of a space, whose relaxed shapes no other share has."""
    if count == 1:
        return space
    every = kinds(as_lowered(space), np.arange(len(space), dtype=np.int64), together=True)
    own = sorted(every, key=len, reverse=True)[number::count]
    return space.only(np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *own])))


class UnboundedRows:
    """The rows of a space, in parts that are bounded together; relaxed shapes rule some out, if it
    `relaxes`."""

    def __init__(
        self, space: Space, machinery: Machinery, objective: Objective, *, relaxes: bool
    ) -> None:
        self._space = space
        self._relaxed: RelaxedRows | None = None
        self._parts, self._left = deque[Indices](), deque[Indices]()  # of rows, of relaxed shapes
        if relaxes and len(space):  # of many shares some may have no row
            self._relaxed = relaxed_rows(space, machinery, objective)
            self._left.extend(self._relaxed.layers.parts)
        else:
            self._parts.extend(parts_of(space, np.arange(len(space), dtype=np.int64)))

    def __bool__(self) -> bool:
        """Whether any are left."""
        return bool(self._parts or self._left)

    def pop(self, threshold: int) -> tuple[Indices, Indices]:
        """Rows to be bounded together, and rows that are ruled out, as all their plans have values
        of the threshold or more; there may be neither."""
        none = np.zeros(0, dtype=np.int64)
        if self._parts:
            return self._parts.popleft(), none
        some, relaxed = self._left.popleft(), self._relaxed
        assert relaxed is not None, "only relaxed shapes are left"
        rows = relaxed.rows_of(some)
        low = relaxed.low(some, threshold) if threshold < NEVER else np.ones(len(rows), dtype=bool)
        self._parts.extend(parts_of(self._space, rows[low]))
        return none, rows[~low]


@record(slots=False)
class RelaxedRows:
    """The rows of a space by their relaxed shapes; and these by their exchanges of keys and values
    alone, if there are any."""

    space: Space
    layers: RelaxedShapes
    exchanges: RelaxedShapes | None

    def low(self, some: Indices, threshold: int) -> Flags:
        """Which of the rows of some relaxed shapes may have a value below a threshold."""
        low = self._exchange_low(some, threshold)
        shapes = self.layers.shapes
        flags, exchanges = np.zeros((2, len(shapes)), dtype=bool), np.zeros(len(shapes), dtype=bool)
        if low.any():
            exchanges[some[low]] = True
            flags[:, some[low]] = self.layers.low(some[low], threshold)
        rows = self.rows_of(some)
        of_row = self.layers.of_row[rows]
        whole = (self.space.columns["zero"][rows] == WHOLE).astype(np.int64)
        return np.asarray(flags[whole, of_row] | (self.layers.apart[rows] & exchanges[of_row]))

    def _exchange_low(self, some: Indices, threshold: int) -> Flags:
        exchanges = self.exchanges
        if exchanges is None:
            return np.ones(len(some), dtype=bool)
        own = exchanges.of_row[some]
        for part in np.unique(self._part_of[own]).tolist():
            if self._thresholds.get(part, 0) < threshold:  # later ones are lower, in a search
                rows = exchanges.parts[part]
                self._flags[rows] = exchanges.low(rows, threshold)[0]
                self._thresholds[part] = threshold
        return self._flags[own]

    def rows_of(self, some: Indices) -> Indices:
        """The rows of the space that have these relaxed shapes, in their order."""
        order, ends = self._rows
        begins = np.concatenate([[0], ends[:-1]])
        own = (order[begins[at] : ends[at]] for at in some.tolist())
        return np.sort(np.concatenate([order[:0], *own]))

    @cached_property
    def _rows(self) -> tuple[Indices, Indices]:
        """The rows of the space by their relaxed shapes, and where those of each end."""
        of_row = self.layers.of_row
        return np.argsort(of_row, kind="stable"), np.cumsum(np.bincount(of_row))

    @cached_property
    def _part_of(self) -> Indices:
        assert self.exchanges is not None
        found = np.zeros(len(self.exchanges.shapes), dtype=np.int64)
        for number, rows in enumerate(self.exchanges.parts):
            found[rows] = number
        return found

    @cached_property
    def _flags(self) -> Flags:
        assert self.exchanges is not None
        return np.ones(len(self.exchanges.shapes), dtype=bool)

    @cached_property
    def _thresholds(self) -> dict[int, int]:
        """For which threshold the flags of a part are."""
        return {}


def relaxed_rows(space: Space, machinery: Machinery, objective: Objective) -> RelaxedRows:
    """The rows of a space by their relaxed shapes."""
    layers = without_additions(space, machinery, objective)
    return RelaxedRows(space, layers, of_exchanges(layers, machinery))
