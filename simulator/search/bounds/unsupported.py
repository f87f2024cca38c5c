"""Plans that a machine cannot time: it may know collectives in groups of some sizes alone.

Whether an op has a time depends on its kind and on how many ranks meet in it, not on which ranks.
So a shape whose op has none in one rank order, overlap or schedule has none in any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from simulator.costs.analytic import ComputeCosts
from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import BatchedProgram
from simulator.search.space import Space
from topologies.errors import MachineError
from topologies.records import record
from workload.grid import AXES
from workload.op import LOSS_REDUCE, NORM_REDUCE, Op
from workload.op_attributes import Attributes
from workload.sizes.arrays import Counts, Indices
from workload.sizes.vectorized import first_of
from workload.transport import PLAIN

Meeting = tuple[str, Counts]  # a collective's kind, and for each row how many ranks meet
REDUCED_ACROSS_STAGES = (NORM_REDUCE, LOSS_REDUCE)
FORM = "form"


@record(slots=False)
class Refused:
    """Rows that may fit, but of which no plan can be predicted, and why."""

    rows: Indices
    reason: str

    @property
    def fitting(self) -> Indices:
        """The rows that may fit: all of them."""
        return self.rows


@record(slots=False)
class RefusalTimes:
    """What a machine has no times for, asked for once."""

    costs: ComputeCosts
    fabric: MachineFabric
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)

    def against(self, space: Space, some: BatchedProgram) -> list[Refused]:
        """Which of some rows cannot be predicted, each with one reason."""
        left = np.ones(len(some.rows), dtype=bool)
        found: list[Refused] = []
        for flags, reason in self._reasons(space, some):
            if (flags & left).any():
                found.append(Refused(some.rows[flags & left], reason))
                left &= ~flags
        return found

    def _reasons(
        self, space: Space, some: BatchedProgram
    ) -> Iterator[tuple[NDArray[np.bool_], str]]:
        for op in some.program.ops:
            if not op.communicates and (reason := self._against_op(op)):
                yield np.ones(len(some.rows), dtype=bool), reason
        for kind, ranks in _meetings(space, some):
            for size in np.unique(ranks).tolist():
                if reason := self._against_group(kind, size):
                    yield ranks == size, reason

    def _against_op(self, op: Op) -> str:
        key = op.kernel, op.dtype, op.attributes.get(FORM)
        if key not in self._known:
            how = cast(Attributes, {name: first_of(value) for name, value in op.attributes.items()})
            sizes = {"nbytes": first_of(op.nbytes), "flops": first_of(op.flops)}
            try:
                self.costs.seconds(replace(op, attributes=how, **sizes))
                self._known[key] = ""
            except MachineError as error:
                self._known[key] = str(error)
        return self._known[key]

    def _against_group(self, kind: str, ranks: int) -> str:
        key = kind, ranks
        if key not in self._known:
            try:
                self.fabric.seconds(PLAIN[kind], 1, self.fabric.ideal(ranks)[0])
                self._known[key] = ""
            except MachineError as error:
                self._known[key] = str(error)
        return self._known[key]


def _meetings(space: Space, some: BatchedProgram) -> Iterator[Meeting]:
    """The collectives and messages of some rows, with those of their pipelines."""
    ops, stages = some.program.ops, space.columns["pp"][some.rows]
    apart = stages > 1
    met = dict.fromkeys((op.kind, op.axes) for op in ops if op.communicates)
    across = {op.purpose: op.axes for op in ops if op.purpose in REDUCED_ACROSS_STAGES}
    for kind, axes in met:
        alone = {own.purpose for own in ops if (own.kind, own.axes) == (kind, axes)}
        ranks = _ranks(space, some.rows, axes)
        yield kind, np.where(apart, 1, ranks) if alone <= set(REDUCED_ACROSS_STAGES) else ranks
    if apart.any():
        for purpose in REDUCED_ACROSS_STAGES:
            ranks = stages * _ranks(space, some.rows, across.get(purpose, ()))
            yield "all_reduce", np.where(apart, ranks, 1)
        yield "send", np.where(apart, 2, 1)
        if some.program.gpt.tied or some.program.gpt.mtp.layers:
            yield "all_reduce", np.where(apart, 2, 1)


def _ranks(space: Space, rows: Indices, axes: tuple[str, ...]) -> Counts:
    """How many ranks there are in a group over some axes, for each row."""
    sizes = {axis: space.columns[axis][rows] for axis in AXES}
    sizes |= space.runs(rows)
    data, shard = sizes["dp"], int(space.problem.fixed.get("shard", 0))
    sharing = np.full_like(data, shard) if shard else data
    sizes |= {"shard": sharing, "replica": data // sharing}
    apart = sizes["etp"] * sizes["ep"]
    sizes |= {"edp": data // apart, "edp_shard": sharing // apart}
    for axis in ("tp", "cp"):
        inside = sizes[f"inner_{axis}"] * sizes[f"middle_{axis}"]
        sizes[f"outer_{axis}"] = sizes[axis] // inside
    every = [sizes[axis] for axis in axes]
    return np.asarray(np.prod(np.stack(every), axis=0) if every else np.ones_like(data))
