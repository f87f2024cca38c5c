"""The program of a step of one stage: all its layers, from a program of a few."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property, reduce

import numpy as np

from simulator.engine.columns import Columns, columns_of
from simulator.engine.cut import IrregularError, with_all_layers
from simulator.engine.steady_state import Followed, Unit, followed, recurring_unit
from simulator.engine.stream_graph import StreamGraph, graph_of_all
from topologies.records import record
from topologies.session import current_session, session_cached
from workload.expert_loads.rank_sizes import sizes_of_ranks
from workload.gpt import GPT
from workload.lowering import lower
from workload.lowering.few_layers import FewLayers, few_layers, in_flight
from workload.memory import MemoryUse, on_device, use_of
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.program import Program
from workload.sizes.arrays import Bytes, Counts


def whole_program(
    gpt: GPT,
    plan: Plan,
    forms: Forms = PLAIN,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
    *,
    fold: bool = True,
) -> WholeProgram:
    """The program of all layers, which a session keeps where matmuls have their plain forms;
    without `fold` it is lowered whole."""
    if forms:
        return _lowered(gpt, plan, forms, behaviour, fold=fold)
    return _kept(gpt, plan, behaviour, fold)


@session_cached(16)
def _kept(gpt: GPT, plan: Plan, behaviour: StackBehaviour, fold: bool) -> WholeProgram:
    return _lowered(gpt, plan, PLAIN, behaviour, fold=fold)


def _lowered(
    gpt: GPT, plan: Plan, forms: Forms, behaviour: StackBehaviour, *, fold: bool
) -> WholeProgram:
    def lowered(few: FewLayers | None) -> Program:
        return lower(gpt, plan, forms=forms, behaviour=behaviour, few=few)

    attempts = few_layers(gpt, plan, behaviour=behaviour) if fold else ()
    program, columns, _ = with_every_layer(lowered, attempts, in_flight(plan, behaviour))
    return WholeProgram(program, columns)


class EnoughTurns(dict[Hashable, int]):
    """How many turns of layers were enough for programs of a session to repeat, by what plans have
    in flight across layers."""


def with_every_layer(
    lowered: Callable[[FewLayers | None], Program],
    attempts: Iterable[FewLayers],
    crossing: Hashable,
) -> tuple[Program, Columns, FewLayers | None]:
    """A program and the columns of all layers: of a program of a few layers where these repeat,
    which are named too, else of one that is lowered whole. With as few turns as did not do for the
    same `crossing` layers no attempt is made."""
    enough = current_session().the(EnoughTurns)
    for few in attempts:
        if few.turns < enough.get(crossing, 0):
            continue
        program = lowered(few)
        try:
            columns = reduce(with_all_layers, few.runs, columns_of(program.outline))
        except IrregularError:
            enough[crossing] = few.turns + 1
            continue
        return program, columns, few
    program = lowered(None)
    return program, columns_of(program.outline), None


@record(slots=False)
class WholeProgram:
    """A program of all layers: `columns` are its ops, of which `program` has those that were
    lowered."""

    program: Program
    columns: Columns

    @property
    def micro_batches(self) -> int:
        """How many micro-batches it has."""
        return self.program.plan.micro_batches

    @cached_property
    def graph(self) -> StreamGraph:
        """The stream graph of all ops."""
        return graph_of_all(self.columns)

    @cached_property
    def unit(self) -> Unit | None:
        """The ops that recur from micro-batch to micro-batch."""
        return recurring_unit(self.columns)

    @property
    def recurring(self) -> Unit:
        """`unit`, asserted to exist."""
        assert self.unit is not None, "micro-batches are left out where they recur"
        return self.unit

    @cached_property
    def followed(self) -> Followed:
        """What ops follow."""
        return followed(self.columns)

    def copies(self, omitted: int) -> Counts:
        """How many ops each stands for, with so many micro-batches left out."""
        copies = np.ones(self.columns.count, dtype=np.int64)
        if omitted:
            copies[self.recurring.copied] += omitted
        return copies

    @cached_property
    def persistent(self) -> Bytes:
        """Bytes by role, (roles,), that are there all the time."""
        return self.columns.persistent(self.program.nbytes)

    @cached_property
    def inputs(self) -> Bytes:
        """Bytes by role, (roles,), that are there all the time for each micro-batch."""
        return self.columns.inputs(self.program.nbytes)

    def peak(self, omitted: int) -> MemoryUse:
        """The first op with the most memory in use, with so many micro-batches left out, on the
        fullest rank."""
        if omitted not in self._peaks:
            every = (self._peak(own, omitted) for own in sizes_of_ranks(self.program))
            self._peaks[omitted] = max(every, key=lambda use: use.total_bytes)
        return self._peaks[omitted]

    @cached_property
    def _peaks(self) -> dict[int, MemoryUse]:
        return {}

    def _peak(self, nbytes: Sequence[int], omitted: int) -> MemoryUse:
        """What `peak` is on a rank with these sizes of buffers."""
        born, gone = self.columns.lives.changes(nbytes)
        levels = (born - gone).cumsum(axis=1) + gone + self.persistent[:, None]
        stop = levels.shape[1]
        if omitted:
            stop, own = self.recurring.stop, self.recurring.copied
            levels[:, stop:] += omitted * (born - gone)[:, own].sum(axis=1, keepdims=True)
            levels += omitted * self.inputs[:, None]
        at = int(on_device(levels, 0).argmax())
        return use_of(levels[:, at], self.columns.name(at, omitted if at >= stop else 0))
