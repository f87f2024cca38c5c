"""Rows of one micro-batch are bounded by a program of two: they have what its first one has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from simulator.costs.analytic import compute_costs
from simulator.ranks.fabric import MachineFabric
from simulator.search.bounds.batched_programs import BatchedProgram, kinds, sized
from simulator.search.bounds.in_flight import kept_for_weights, weight_sums, worked_on
from simulator.search.bounds.op_bounds import OpBounds
from simulator.search.bounds.part_times import part_times
from simulator.search.bounds.peak_memory import memory
from simulator.search.root_nodes import entries_of, times_for
from simulator.search.space import Space
from simulator.stacks.searched import fastest_kernels
from tests.examples import few_and_many
from tests.simulator.search.drawn import DRAWN, MACHINES, mixtures, models, spaces
from topologies.placement import scheduler

Facts = dict[tuple[Any, ...], int]


def bounds_of(space: Space, name: str) -> OpBounds:
    problem, machine = space.problem, MACHINES[name]
    fabric = MachineFabric(machine, problem.devices, scheduler(machine, problem.devices))
    kernels = fastest_kernels(problem.stack, problem.gpt, problem.fixed, machine)
    costs = compute_costs(machine, fabric.ranks_per_node, problem.devices, kernels)
    return OpBounds(space, costs, fabric)


def timed(some: BatchedProgram) -> set[tuple[Any, ...]]:
    """What a machine must have times for."""
    return {(op.kind, op.dtype, op.axes, op.attributes.get("form")) for op in some.program.ops}


def facts_of(op_bounds: OpBounds, some: BatchedProgram, row: int) -> Facts:
    """All bytes and ticks that bounds of a row are made of."""
    lane = int(np.flatnonzero(some.rows == row)[0])
    held, saved = memory(some)
    parts: dict[str, Mapping[Any, Any]] = {"held": held, "saved": saved}
    parts["worked"], parts["sums"] = worked_on(some), weight_sums(some)
    parts["kept"] = kept_for_weights(some)
    found: Facts = {
        (name, kind): int(nbytes[lane])
        for name, each in parts.items()
        for kind, nbytes in each.items()
    }
    entries = next(entries_of(op_bounds.space, np.array([row])))
    for key, streams in times_for(entries, part_times(op_bounds, some)).items():
        found |= {(*key, *stream): int(ticks[lane]) for stream, ticks in streams.items()}
    return found


def is_as_alone(space: Space, name: str, data: st.DataObject) -> None:
    every = kinds(space, np.arange(len(space)), together=True)
    mixed = [rows for rows in every if len(np.unique(np.minimum(space.micro_batches[rows], 2))) > 1]
    if not mixed:
        reject()
    rows = data.draw(st.sampled_from(mixed))
    row = data.draw(st.sampled_from(rows[space.micro_batches[rows] == 1].tolist()))
    op_bounds = bounds_of(space, name)
    (alone,) = sized(space, np.array([row]))
    for some in sized(space, rows, together=True):
        if row in some.rows:
            assert facts_of(op_bounds, some, row) == facts_of(op_bounds, alone, row)
            assert timed(some) == timed(alone)


@few_and_many(
    5,
    300,
    DRAWN,
    space=spaces(gpts=st.one_of(models(), mixtures())),
    name=st.sampled_from(sorted(MACHINES)),
    data=st.data(),
)
def test_one_micro_batch_has_the_bounds_that_its_own_program_gives(
    space: Space, name: str, data: st.DataObject
) -> None:
    is_as_alone(space, name, data)
