"""The program of a step of one stage: all its layers, from a program of a few."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np

from simulator.engine.columns import Columns, Lists, changes_of, columns_of, lives_of
from simulator.engine.fewer_layers import FewerLayers, fewer_layers
from simulator.engine.steady_state import Followed, Unit, followed, recurring_unit
from simulator.engine.stream_graph import StreamGraph
from topologies.records import record
from topologies.session import current_session, session_cached
from workload.expert_loads.rank_sizes import sizes_of_ranks
from workload.gpt import GPT
from workload.lowering import kept_program, lower
from workload.memory import MemoryUse, on_device, use_of
from workload.naming import op_name
from workload.op import NONE, ROLES, Op, layer_part
from workload.passes.matmul_forms import PLAIN, Forms
from workload.passes.stack import PLAIN_BEHAVIOUR, StackBehaviour
from workload.plan import Plan
from workload.program import Program
from workload.repetition import IrregularError, OpTable, Repeat, repeated
from workload.sizes.arrays import Bytes, Counts, Indices
from workload.stages import samples
from workload.structure import Structure, memoized_on

Lowered = Callable[[GPT, Plan], Program]
Growth = tuple[Indices, "list[_Sizes]"]  # the ops of no layer, and how they grow with each turn


def lowered_again(
    gpt: GPT, plan: Plan, *, forms: Forms = PLAIN, behaviour: StackBehaviour = PLAIN_BEHAVIOUR
) -> Program:
    """The program, in plain matmul forms or others."""
    if forms:
        return lower(gpt, plan, forms=forms, behaviour=behaviour)
    return kept_program(gpt, plan, behaviour=behaviour)


def kept_whole_program(
    gpt: GPT, plan: Plan, forms: Forms, behaviour: StackBehaviour, *, fold: bool = True
) -> WholeProgram:
    """The program of all layers, which a session keeps where matmuls have their plain forms."""
    if forms:
        lowered = partial(lowered_again, forms=forms, behaviour=behaviour)
        return whole_program(lowered, gpt, plan, behaviour, fold=fold)
    return _kept(gpt, plan, behaviour, fold)


@session_cached(16)
def _kept(gpt: GPT, plan: Plan, behaviour: StackBehaviour, fold: bool) -> WholeProgram:
    return whole_program(
        partial(lowered_again, behaviour=behaviour), gpt, plan, behaviour, fold=fold
    )


class EnoughTurns(dict[Hashable, int]):
    """How many turns of layers were enough for programs of a session to repeat, by what plans have
    in flight across layers."""


def whole_program(
    lowered: Lowered,
    gpt: GPT,
    plan: Plan,
    behaviour: StackBehaviour = PLAIN_BEHAVIOUR,
    *,
    fold: bool = True,
) -> WholeProgram:
    """The program of all layers, from one of a few layers where these repeat: not where layers of
    two micro-batches take turns, since one goes up while the other goes down."""
    fewer, enough = fewer_layers(gpt, plan), current_session().the(EnoughTurns)
    split = plan.zero, plan.z > 1, plan.dp > 1
    in_flight = behaviour, plan.training.recompute, plan.training.offload, split, fewer.crossing
    turns = "a2a" in plan.training.overlap and plan.ep > 1 and plan.pp == 1 < plan.micro_batches
    for kept in fewer.lengths(enough.get(in_flight, 0)) if fold and not turns else ():
        try:
            found = _repeated(lowered, fewer, kept)
        except IrregularError:
            continue
        enough[in_flight] = max(kept)
        return found
    program = lowered(gpt, plan)
    changes = changes_of(program.outline, program.nbytes)
    persistent = program.outline.persistent(program.nbytes)
    return WholeProgram(program, (), columns_of(program.outline), *changes, persistent)


def _repeated(lowered: Lowered, fewer: FewerLayers, kept: Sequence[int]) -> WholeProgram:
    """The program of all layers, from one that keeps so many turns of each run of them."""
    repeats = fewer.repeats(kept)
    few = lowered(*fewer.with_turns(kept))
    all_layers(few.outline, repeats)

    def small(turns: Sequence[int]) -> Program:
        gpt, plan = fewer.with_turns(turns)
        return lowered(gpt, _with_samples(plan))

    turns, *more = fewer.smallest()
    one = small(turns)
    growth = _told(few, one, repeats[0]) if len(repeats) == 1 else None
    if growth is None:
        growth = _compared(few, [one, *map(small, more)], repeats)
    return _grown(few, repeats, growth)


def _with_samples(plan: Plan) -> Plan:
    """The plan with the micro-batches that stand for all: sizes grow with layers alike in the
    first, those in the middle, and the last."""
    return plan.with_micro_batches(len(samples(plan))) if plan.passes == 1 else plan


def _compared(few: Program, smallest: Sequence[Program], repeats: tuple[Repeat, ...]) -> Growth:
    """How what is of no layer, sums over all parameters and what is freed behind them, grows with
    each turn of a run: by as much from one to two, in the `smallest` programs, as from these to the
    few, else an IrregularError says so."""
    places = alone_in_all(few.outline, tuple(each.outline for each in smallest))
    every = zip((few, *smallest), places, strict=True)
    sizes, one, *more = [_Sizes.of(program, own) for program, own in every]
    growth = [each - one for each in more]
    if not (sizes - one).is_same(_sum(growth, [each.kept - 1 for each in repeats])):
        raise IrregularError("what is of no layer does not grow evenly with the layers")
    return places[0], growth


def _told(few: Program, one: Program, repeat: Repeat) -> Growth | None:
    """The growth with each turn of a single run, from the few and a program of one turn. An op
    whose bytes are those of its operands grows by one turn's operands, and what is freed behind an
    op grows by what is freed of a turn in the middle. None where the two programs differ by
    anything else."""
    places = alone_in_all(few.outline, (one.outline,))
    sizes, least = (_Sizes.of(*each) for each in zip((few, one), places, strict=True))
    own, middle, beyond = places[0], (repeat.kept - 1) // 2, repeat.kept - 1
    operands = _operands_by_turn(few, own, repeat)[:, middle]
    freed, difference = _freed_by_turn(few, own, repeat), sizes - least
    persistent = _persistent_of_turn(few, repeat, middle)
    numbers = np.stack([operands, np.zeros_like(operands)])
    if (
        (difference.numbers != beyond * numbers).any()
        or (freed[:, :, middle] != freed[:, :, middle + 1]).any()
        or difference.born.any()
        or (difference.persistent != beyond * persistent).any()
    ):
        return None
    return own, [_Sizes(numbers, difference.born, freed[:, :, middle], persistent)]


def _operands_by_turn(program: Program, places: Indices, repeat: Repeat) -> Bytes:
    """Bytes of the operands of some ops that are of each turn, (ops, turns): of a collective of its
    payload, of an op without bytes none."""
    columns, turns = columns_of(program.outline), _turns_of_buffers(program, repeat)
    nbytes = np.array(program.nbytes, dtype=np.int64)
    found = np.zeros((len(places), repeat.kept + 1), dtype=np.int64)  # the last one of no turn
    for row, at in enumerate(places.tolist()):
        op = program.ops[at]
        ways = [columns.reads, columns.writes]
        if op.is_collective:
            ways = ways[1:] if op.kind == "all_gather" else ways[:1]
        buffers = [each for way in ways for each in way.of_one(at)] if op.nbytes else []
        np.add.at(found[row], turns[buffers], nbytes[buffers])
    return found[:, : repeat.kept]


def _freed_by_turn(program: Program, places: Indices, repeat: Repeat) -> Bytes:
    """Bytes of each turn's buffers that are freed behind some ops, (roles, ops, turns); behind the
    last op of a step that does not matter."""
    op, role, buffer = lives_of(program.outline).gone
    row = np.full(len(program.ops), len(places), dtype=np.int64)
    row[places] = np.arange(len(places))
    row[-1] = len(places)
    turn = _turns_of_buffers(program, repeat)[buffer]
    found = np.zeros((len(ROLES), len(places) + 1, repeat.kept + 1), dtype=np.int64)
    np.add.at(found, (role, row[op], turn), np.array(program.nbytes, dtype=np.int64)[buffer])
    return found[:, :-1, :-1]


def _persistent_of_turn(program: Program, repeat: Repeat, turn: int) -> Bytes:
    """Bytes by role, (roles,), of a turn's buffers that are there all the time."""
    found = np.zeros(len(ROLES), dtype=np.int64)
    own = _turns_of_buffers(program, repeat) == turn
    for buffer, is_own in zip(program.buffers.values(), own.tolist(), strict=True):
        if is_own and buffer.persistent:
            found[ROLES.index(buffer.role)] += buffer.nbytes
    return found


def _turns_of_buffers(program: Program, repeat: Repeat) -> Indices:
    """The turn that each buffer belongs to: by its part, or by the op that first writes it; NONE if
    it belongs to none."""
    buffers = program.buffers.values()
    own = np.array([each.part.layer for each in buffers], dtype=np.int64)
    born = columns_of(program.outline).flow.born
    written = np.where(born == NONE, NONE, table_of(program.outline).layer[born])
    layer = np.where(own == NONE, written, own)
    inside = (layer >= repeat.first) & (layer < repeat.stop)
    return np.asarray(np.where(inside, (layer - repeat.first) // repeat.period, NONE))


def _grown(few: Program, repeats: tuple[Repeat, ...], growth: Growth) -> WholeProgram:
    """The program of all layers."""
    own, each_turn = growth
    further = _sum(each_turn, [each.whole - each.kept for each in repeats])
    grown = {}
    for at, nbytes, flops in zip(own.tolist(), *further.numbers.tolist(), strict=True):
        if nbytes or flops:
            op = few.ops[at]
            grown[at] = replace(op, nbytes=op.nbytes + nbytes, flops=op.flops + flops)
    born, gone = changes_of(few.outline, few.nbytes)
    born[:, own] += further.born
    gone[:, own] += further.gone
    persistent = few.outline.persistent(few.nbytes) + further.persistent
    columns = columns_of(few.outline).with_others(grown)
    return WholeProgram(few, repeats, columns, born, gone, persistent)


def _sum(growth: Sequence[_Sizes], counts: Sequence[int]) -> _Sizes:
    """So many times each of some sizes, all together."""
    every = [each.times(count) for each, count in zip(growth, counts, strict=True)]
    return reduce(_Sizes.__add__, every)


@record(slots=False)
class _Sizes:
    """What may grow with the layers: `numbers` has bytes and FLOPs of ops, `born` and `gone` what
    comes and goes with them, `persistent` what is there all the time, but for tokens."""

    numbers: Bytes
    born: Bytes
    gone: Bytes
    persistent: Bytes

    @classmethod
    def of(cls, program: Program, places: Indices) -> _Sizes:
        """The sizes of some ops. What is freed behind the last op of a step does not matter."""
        born, gone = changes_of(program.outline, program.nbytes)
        gone[:, -1] = 0
        ops = [program.ops[at] for at in places.tolist()]
        numbers = [[op.nbytes for op in ops], [op.flops for op in ops]]
        count, inputs = program.plan.micro_batches, program.outline.inputs(program.nbytes)
        persistent = program.outline.persistent(program.nbytes) - count * inputs
        return cls(np.array(numbers, dtype=np.int64), born[:, places], gone[:, places], persistent)

    def __sub__(self, other: _Sizes) -> _Sizes:
        pairs = zip(self._all, other._all, strict=True)
        return _Sizes(*(one - another for one, another in pairs))

    def __add__(self, other: _Sizes) -> _Sizes:
        pairs = zip(self._all, other._all, strict=True)
        return _Sizes(*(one + another for one, another in pairs))

    def times(self, count: int) -> _Sizes:
        """So many times as much."""
        return _Sizes(*(count * each for each in self._all))

    def is_same(self, other: _Sizes) -> bool:
        """Whether it is as much."""
        return all(map(np.array_equal, self._all, other._all))

    @property
    def _all(self) -> tuple[Bytes, ...]:
        return self.numbers, self.born, self.gone, self.persistent


@memoized_on
def alone_in_all(few: Structure, others: tuple[Structure, ...]) -> list[Indices]:
    """The places of the ops of no layer, and of those that stand for them in the others, where
    micro-batches in the middle may be one; an IrregularError where these have other such ops."""
    keys, last = _alone(few)
    found = [np.array(list(keys.values()), dtype=np.int64)]
    for other in others:
        places, its_last = _alone(other)
        like = [(kind, _like(m, last, its_last), *rest) for kind, m, *rest in keys]
        if set(like) != places.keys():
            raise IrregularError("programs of fewer layers have other ops of no layer")
        found.append(np.array([places[key] for key in like], dtype=np.int64))
    return found


def _alone(outline: Structure) -> tuple[dict[tuple[Any, ...], int], int]:
    """The ops of no layer by what tells them apart, and the last micro-batch."""
    found = {
        (op.kind, *op.identity): at for at, op in enumerate(outline.ops) if not op.part.is_layer
    }
    return found, max(op.micro_batch for op in outline.ops)


def _like(micro_batch: int, last: int, its_last: int) -> int:
    """Which of fewer micro-batches stands for one: for the last its last."""
    if micro_batch <= 0 or last == its_last:
        return micro_batch
    return its_last if micro_batch == last else 1


@record(slots=False)
class WholeProgram:
    """A program of many layers, given by one of a few, some of which stand for more (`repeats`),
    and `columns` of the ops of the few in the sizes that they have in it.

    `born` and `gone` are the bytes by role, (roles, ops of the few), that come with each op and are
    free after it; `persistent` those that are there all the time.
    """

    program: Program
    repeats: tuple[Repeat, ...]
    columns: Columns
    born: Bytes
    gone: Bytes
    persistent: Bytes

    @property
    def table(self) -> OpTable:
        """All ops."""
        return all_layers(self.program.outline, self.repeats)

    @cached_property
    def graph(self) -> StreamGraph:
        """Their stream graph."""
        table = self.table
        shift = table.layer - table_of(self.program.outline).layer[table.base]
        waits = Lists(table.wait_offsets, table.waits)
        return StreamGraph(self.columns, table.base, shift, waits, by_place=True)

    @property
    def unit(self) -> Unit | None:
        """The ops that recur from micro-batch to micro-batch."""
        return unit_of_layers(self.program.outline, self.repeats)

    @property
    def recurring(self) -> Unit:
        """`unit`, asserted to exist."""
        assert self.unit is not None, "micro-batches are left out where they recur"
        return self.unit

    def copies(self, omitted: int) -> Counts:
        """How many ops each stands for, with so many micro-batches left out."""
        copies = np.ones(len(self.table.base), dtype=np.int64)
        if omitted:
            copies[self.recurring.copied] += omitted
        return copies

    def peak(self, omitted: int) -> MemoryUse:
        """The first op with the most memory in use, with so many micro-batches left out, on the
        fullest rank."""
        if omitted not in self._peaks:
            every = (self._in(nbytes)._peak(omitted) for nbytes in sizes_of_ranks(self.program))
            self._peaks[omitted] = max(every, key=lambda use: use.total_bytes)
        return self._peaks[omitted]

    @cached_property
    def _peaks(self) -> dict[int, MemoryUse]:
        return {}

    def _in(self, nbytes: Sequence[int]) -> WholeProgram:
        """The whole program with other sizes of the buffers of layers."""
        if nbytes is self.program.nbytes:
            return self
        outline, usual_sizes = self.program.outline, self.program.nbytes
        both = zip(*(changes_of(outline, each) for each in (nbytes, usual_sizes)), strict=True)
        more = [changes - usual for changes, usual in both]
        return replace(self, born=self.born + more[0], gone=self.gone + more[1])

    def _peak(self, omitted: int) -> MemoryUse:
        base = self.table.base
        born, gone = self.born[:, base], self.gone[:, base]
        levels = (born - gone).cumsum(axis=1) + gone + self.persistent[:, None]
        stop = levels.shape[1]
        if omitted:
            stop, own = self.recurring.stop, self.recurring.copied
            levels[:, stop:] += omitted * (born - gone)[:, own].sum(axis=1, keepdims=True)
            levels += omitted * self.program.outline.inputs(self.program.nbytes)[:, None]
        at = int(on_device(levels, 0).argmax())
        return use_of(levels[:, at], self._name(at, omitted if at >= stop else 0))

    def _name(self, at: int, later: int) -> str:
        """The name of an op, so many micro-batches later."""
        op = self.program.ops[int(self.table.base[at])]
        micro_batch, part, again, label = op.identity
        layer = int(self.table.layer[at])
        return op_name(
            micro_batch + later if micro_batch >= 0 else NONE,
            layer_part(layer) if layer >= 0 else part,
            label,
            recomputed=again,
        )


@memoized_on
def table_of(outline: Structure) -> OpTable:
    """The ops of a program as they are."""
    columns = columns_of(outline)
    known: dict[object, int] = {}
    kind = columns.sorts.numbers(lambda op: known.setdefault(_kind(op), len(known)))
    return OpTable(
        np.arange(len(outline.ops), dtype=np.int64),
        kind[columns.sorts.of_op],
        np.array([op.part.layer for op in outline.ops], dtype=np.int64),
        np.array([op.micro_batch for op in outline.ops], dtype=np.int64),
        *columns.flow.waits,
    )


def _kind(op: Op) -> object:
    _, part, again, label = op.identity
    return part.kind, again, label, op.kind, op.stream, op.axes, op.block.work


@memoized_on
def all_layers(outline: Structure, repeats: tuple[Repeat, ...]) -> OpTable:
    """The ops of a program of many layers, from the outline of one of a few."""
    return repeated(table_of(outline), repeats)


@memoized_on
def unit_of_layers(outline: Structure, repeats: tuple[Repeat, ...]) -> Unit | None:
    """What recurs from micro-batch to micro-batch in such a program."""
    return recurring_unit(all_layers(outline, repeats))


@memoized_on
def pairs_of_layers(outline: Structure, repeats: tuple[Repeat, ...]) -> Followed:
    """What ops of such a program follow."""
    table = all_layers(outline, repeats)
    sorts = columns_of(outline).sorts
    stream = sorts.stream[sorts.of_op[table.base]]
    streams = [np.flatnonzero(stream == number).tolist() for number in np.unique(stream)]
    return followed(table, streams)
