"""All layers of a program, from one in which a few stand for them.

Passes go through the layers: forward, backward, and at the step's end, of every micro-batch. In the
order of the program, what stands from the second of the turns around those left out (see
`workload/lowering/few_layers.py`) to the third is the *body* of a pass: ops of that turn, and those
of its neighbours that are issued ahead or behind. What follows up to the fourth turn has to be the
body once more, each op of the next turn, or the one before. Then the whole program is the few one
with the body written once more for each turn left out.

An op works on buffers of its own turn and of near ones, which move with it, or on those of one
turn far away, or of no layer, which stay; what sums over all layers works on those of all of them.
Where nothing crosses layers two turns are lowered, and the body is the first one of a pass. What it
gets from before all layers takes the place of what each other turn gets from the one before it.
That two bodies are alike is looked up, and that a body's ops work on the same in both; an
IrregularError says that they do not. That the lowering writes all further layers like these is its
own matter: tests compare with programs of all layers.

Cost: arrays with one entry for each operand of the whole program.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulator.engine.columns import Columns, Lists
from workload.lowering.few_layers import Run
from workload.op import NONE
from workload.sizes.arrays import Flags, Indices

REACH = 2  # turns between an op and what it works on, unless that is far away
LEAST = 2  # turns that are lowered, where nothing crosses them


class IrregularError(Exception):
    """A program whose layers do not repeat."""


def with_all_layers(columns: Columns, run: Run) -> Columns:
    """The columns with the layers that a run lacks."""
    return _Cut(columns, run).whole


class _Bodies(NamedTuple):
    """Places: by body where it begins, and how many ops it has."""

    first: Indices
    length: Indices


class _Cut:
    """A program on its way to all layers of a run, whose turns are numbered; `turn` is NONE for ops
    of other layers or of none. A *row* has the ops that differ in their turn alone."""

    def __init__(self, columns: Columns, run: Run) -> None:
        self.columns, self.run = columns, run
        self.kept, self.more, self.middle = run.turns, run.more, run.before - 1
        self.every = self.kept + self.more
        turn, phase = self._places(columns.layer)
        keys = columns.same_but_layer, columns.micro_batch, phase
        self.rows = _numbered(keys, turn != NONE)
        # Layers that are missing at the step's end alone have no turn elsewhere.
        self.region: Flags = (columns.block == NONE) | (not run.at_end)
        self.turn = np.where(self.region, turn, NONE)
        self.inside: Flags = self.turn != NONE

    def _places(self, layers: Indices) -> tuple[Indices, Indices]:
        """The turns of layers, and where in a turn they are."""
        known = np.full(max(*self.run.lowered, int(layers.max(initial=0))) + 2, NONE)
        known[list(self.run.lowered)] = np.arange(len(self.run.lowered))
        at = known[layers]  # the last one for NONE
        return np.where(at == NONE, NONE, at // self.run.period), at % self.run.period

    @cached_property
    def places(self) -> Indices:
        """Where the op of each row stands in each turn, (rows, turns); NONE: it has none there."""
        count = int(self.rows.max(initial=NONE)) + 1
        found = np.full((count, self.kept), NONE, dtype=np.int64)
        found[self.rows[self.inside], self.turn[self.inside]] = np.flatnonzero(self.inside)
        if (found != NONE).sum() != self.inside.sum():
            raise IrregularError("two ops are told apart by nothing")
        return found

    @cached_property
    def bodies(self) -> _Bodies:
        """The bodies of all passes, in the order of the program."""
        pair = self.places[:, self.middle : self.middle + 2]
        here, there = pair.min(axis=1), pair.max(axis=1)
        placed, found = here == NONE, list[tuple[int, int]]()
        anchors = self.columns.stream[np.maximum(here, 0)] == 0
        for rows in (np.flatnonzero(anchors & ~placed), np.flatnonzero(~anchors & ~placed)):
            for row in rows[np.argsort(here[rows], kind="stable")].tolist():
                if not placed[row]:
                    first, length = int(here[row]), int(there[row] - here[row])
                    own = self._body(first, length)
                    if placed[own].any():
                        raise IrregularError("an op is in two bodies")
                    placed[own] = True
                    found.append((first, length))
        return _Bodies(*np.array(sorted(found), dtype=np.int64).reshape(-1, 2).T)

    def _body(self, first: int, length: int) -> Indices:
        """The rows of a body, which is there twice."""
        if first + 2 * length > len(self.rows):
            raise IrregularError("a body reaches the end of the program")
        one, other = slice(first, first + length), slice(first + length, first + 2 * length)
        rows, columns = self.rows[one], self.columns
        alike = (
            (rows, self.rows[other]),
            *((each[one], each[other]) for each in (columns.sort, columns.slot)),
        )
        if not all((a == b).all() for a, b in alike) or (rows == NONE).any():
            raise IrregularError("what follows a body is another one")
        if (np.abs(self.turn[other] - self.turn[one]) != 1).any():
            raise IrregularError("ops of a body are not of the next turn")
        if len(set(rows.tolist())) != length:
            raise IrregularError("a body has an op twice")
        return rows

    @cached_property
    def bodied(self) -> tuple[Indices, Indices]:
        """The ops of all bodies, and the same ops of what follows each."""
        count = np.repeat(self.bodies.length, self.bodies.length)
        first = np.repeat(self.bodies.first, self.bodies.length)
        own = first + _places_within(self.bodies.length)
        return own, own + count

    @cached_property
    def turn_of_whole(self) -> Indices:
        """By op that is lowered, its turn among all: those left out come behind a pass' body."""
        turn = np.where(self.turn > self.middle, self.turn + self.more, self.turn)
        own, other = self.bodied
        ends = np.repeat(self.bodies.first + self.bodies.length, self.bodies.length)
        insertion = np.full(len(self.places), NONE, dtype=np.int64)
        insertion[self.rows[own]] = ends
        upward = np.zeros(len(self.places), dtype=np.bool_)
        upward[self.rows[own]] = self.turn[other] > self.turn[own]
        if (
            (insertion == NONE) & (self.places[:, self.middle : self.middle + 2] != NONE).any(1)
        ).any():
            raise IrregularError("an op of a turn in the middle is in no body")
        (at,) = np.nonzero(self.inside)
        rows = self.rows[at]
        recurs = insertion[rows] != NONE
        at, rows = at[recurs], rows[recurs]
        late = (at < insertion[rows]) != upward[rows]
        turn[at] = self.turn[at] + self.more * late
        return np.asarray(turn)

    @cached_property
    def sources(self) -> tuple[Indices, Indices]:
        """By op of the whole program which it is or is a copy of, and which copy: 0, 1, ..."""
        own, first, length = len(self.rows), self.bodies.first, self.bodies.length
        ends = first + length
        copies = np.ones(own, dtype=np.int64)
        position = (
            np.arange(own)
            + self.more
            * np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(length)])[
                np.searchsorted(ends, np.arange(own), side="right")
            ]
        )
        total = own + self.more * int(length.sum())
        source, copy = np.empty(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
        source[position] = np.arange(own)
        body, _ = self.bodied
        each = np.repeat(length, length)
        number = np.arange(1, self.more + 1)[:, None]
        at = position[body] + number * each
        source[at], copy[at] = body, number
        assert copies.sum() + number.size * len(body) == total, "every op is one or a copy"
        return source, copy

    @cached_property
    def step(self) -> Indices:
        """By op that is lowered by how many turns each further copy of it is away: 1 or -1, 0 of
        those that are in no body."""
        own, other = self.bodied
        found = np.zeros(len(self.rows), dtype=np.int64)
        found[own] = self.turn[other] - self.turn[own]
        return found

    @cached_property
    def turns(self) -> Indices:
        """By op of the whole program its turn."""
        source, copy = self.sources
        return np.asarray(self.turn_of_whole[source] + copy * self.step[source])

    @cached_property
    def families(self) -> tuple[Indices, Indices, Indices]:
        """By buffer its turn, NONE if it has none; its *family*, that of the same buffers of other
        turns; and its number in the whole program, or of a family's in the first turn, in front of
        and behind all of which there is a number to spare."""
        columns = self.columns
        turn, phase = self._places(columns.buffer_layers)
        if self.run.at_end:
            turn = np.where(self._touched, turn, NONE)
        inside = turn != NONE
        born, place = columns.first_written
        made = (born != NONE) & ~columns.lasting
        row = np.where(self.rows[born] == NONE, len(self.places) + born, self.rows[born])
        row, place = np.where(made, row, NONE), np.where(made, place, np.arange(len(place)))
        order = _counted_within(np.stack([row, turn, phase]), place)
        family = _numbered((row, phase, order), inside)
        count = int(family.max(initial=NONE)) + 1
        alone = np.flatnonzero(~inside)
        number = len(alone) + family * (self.every + 2) + 1
        number[alone] = np.arange(len(alone))
        self.buffers = len(alone) + count * (self.every + 2)
        return turn, family, number

    @cached_property
    def handed(self) -> Indices:
        """By buffer of no turn its number where it takes the place of another turn's: what the
        first layer, or the last one, gets from beyond all layers, where the others get it from the
        one beside them; NONE of all others."""
        turn, _, number = self.families
        found = np.full(len(turn), NONE, dtype=np.int64)
        for lists in (self.columns.reads, self.columns.writes) if self.kept == LEAST else ():
            for ends, others in (self.bodied, self.bodied[::-1]):
                given, like, at = self._given(lists, ends, others)
                place = self.turn_of_whole[ends[at]] + turn[like] - self.turn[others[at]]
                if ((place != -1) & (place != self.every)).any():
                    raise IrregularError("a turn works on what none beside it hands over")
                found[given] = number[like] + place
        return found

    def _given(
        self, lists: Lists, ends: Indices, others: Indices
    ) -> tuple[Indices, Indices, Indices]:
        """What ops work on that is of no turn, where others work on what is of one, with the latter
        and the places of the ops."""
        first, second = (lists.of_some(each) for each in (ends, others))
        if len(first.places) != len(second.places):
            raise IrregularError("ops of a body work on more or less in what follows it")
        turn, *_ = self.families
        (chosen,) = np.nonzero((turn[first.places] == NONE) & (turn[second.places] != NONE))
        return first.places[chosen], second.places[chosen], first.owners[chosen]

    @property
    def _touched(self) -> Flags:
        """Which buffers ops of the region work on."""
        found = np.zeros(len(self.columns.buffer), dtype=np.bool_)
        for lists in (self.columns.reads, self.columns.writes):
            found[lists.places[self.region[lists.owners]]] = True
        return found

    def _operands(self, lists: Lists) -> Lists:
        """What the ops of the whole program read, or write."""
        self._check_operands(lists)
        turn, _, number = self.families
        one, buffer = lists.owners, lists.places
        own, away = turn[buffer], turn[buffer] - self.turn[one]
        sums = self._sums(lists)[one]
        inside = own != NONE
        near = (self.turn[one] != NONE) & (np.abs(away) <= REACH) & ~sums & inside
        far = np.where(own > self.middle, own + self.more, own)
        at = np.where(near, self.turn_of_whole[one] + away, far)
        given = self.handed[buffer]
        moved = np.where(near | (given != NONE), self.step[one], 0)
        ends = at + self.more * moved
        if ((at < 0) | (at >= self.every) | (ends < 0) | (ends >= self.every))[inside].any():
            raise IrregularError("an op works on a turn that is not there")
        first = np.where(given == NONE, number[buffer] + np.where(inside, at, 0), given)
        source, copy = self.sources
        whole = Lists(lists.offsets, np.arange(len(buffer))).of_some(source)
        found = first[whole.places] + np.repeat(copy, np.diff(whole.offsets)) * moved[whole.places]
        further = (sums & (own == self.middle))[whole.places]
        return _with_further(whole.offsets, found, further, self.more)

    def _check_operands(self, lists: Lists) -> None:
        """That ops of a body work on the same in what follows it, of the next turn or the same."""
        turn, family, number = self.families
        own, other = self.bodied
        counts = np.diff(lists.offsets)
        if (counts[own] != counts[other]).any():
            raise IrregularError("ops of a body work on more or less in what follows it")
        first, second = (lists.of_some(each).places for each in (own, other))
        before, after = (np.repeat(self.turn[each], counts[each]) for each in (own, other))
        away, later = turn[first] - before, turn[second] - after
        near = [np.abs(each) <= REACH for each in (away, later)]
        moves = (family[first] == family[second]) & (away == later) & near[0] & near[1]
        stays = (first == second) & ((turn[first] == NONE) | ~(near[0] | near[1]))
        here, there = (np.repeat(self.turn_of_whole[each], counts[each]) for each in (own, other))
        handed = [self.handed[each] for each in (first, second)]
        stays &= handed[0] == NONE
        given = (turn[second] != NONE) & (handed[0] == number[second] + here + later)
        given |= (turn[first] != NONE) & (handed[1] == number[first] + there + away)
        if not np.where(turn[first] == NONE, stays | given, moves | stays | given).all():
            raise IrregularError("ops of a body work on others in what follows it")

    def _sums(self, lists: Lists) -> Flags:
        """Which ops work on buffers of all turns: an op of no body that works on those of the two
        turns in the middle."""
        turn, *_ = self.families
        owner = lists.owners
        counts = np.zeros((self.kept, len(self.rows)), dtype=np.int64)
        own = turn[lists.places]
        (there,) = np.nonzero(own != NONE)
        np.add.at(counts, (own[there], owner[there]), 1)
        middle = counts[self.middle : self.middle + 2]
        alone = np.ones(len(self.rows), dtype=np.bool_)
        alone[np.concatenate(self.bodied)] = False
        alone &= self.region
        if self.kept == LEAST:  # the turns in the middle are the ends too, from which streams come
            there = there[self.columns.of_layers[lists.places[there]]]
            held = np.zeros_like(counts)
            np.add.at(held, (own[there], owner[there]), 1)
            uneven = held[0] != held[1]
        else:
            uneven = middle[0] != middle[1]
        if (alone & ~self.inside & uneven).any():
            raise IrregularError("an op of no layer works on a layer in the middle")
        return np.asarray(alone & (counts > 0).all(axis=0) & (middle[0] == middle[1]))

    @cached_property
    def whole(self) -> Columns:
        """The columns of the whole program."""
        columns, (source, _) = self.columns, self.sources
        reads, writes = self._operands(columns.reads), self._operands(columns.writes)
        moved = self.turns != NONE
        _, op_phase = self._places(columns.layer)
        layers = columns.layer[source]
        layers[moved] = self._layers(self.turns[moved], op_phase[source[moved]])
        buffer, buffer_layers, unmade = self._buffers()
        block, block_kinds, block_layers = self._blocks()
        return replace(
            columns,
            source=columns.source[source],
            layer=layers,
            micro_batch=columns.micro_batch[source],
            reads=reads,
            writes=writes,
            buffer=columns.buffer[buffer],
            buffer_layers=buffer_layers,
            unmade=unmade,
            block=block,
            block_kinds=block_kinds,
            block_layers=block_layers,
            slot=columns.slot[source],
            of_slot=columns.of_slot[source],
        )

    def _buffers(self) -> tuple[Indices, Indices, Flags]:
        """By buffer of the whole program which it is or is a copy of, its layer, and whether what
        makes it is left out: slots that make what is used at the step's end."""
        columns, (turn, _, number) = self.columns, self.families
        _, phase = self._places(columns.buffer_layers)
        made, _ = columns.first_written
        source = np.zeros(self.buffers, dtype=np.int64)
        layers = np.full(self.buffers, NONE, dtype=np.int64)
        unmade = np.zeros(self.buffers, dtype=np.bool_)
        own, every = np.flatnonzero(turn == self.middle), np.arange(self.every)
        at = number[own][:, None] + every
        source[at], layers[at] = own[:, None], self._layers(every, phase[own][:, None])
        unmade[at] = ((made[own] != NONE) & ~self.region[made[own]])[:, None]
        place = np.where(turn > self.middle, turn + self.more, turn)
        at = np.where(self.handed == NONE, number + np.where(turn == NONE, 0, place), self.handed)
        source[at], unmade[at] = np.arange(len(turn)), columns.unmade
        layers[at] = np.where(turn == NONE, columns.buffer_layers, layers[at])
        return source, layers, unmade

    def _blocks(self) -> tuple[Indices, Indices, Indices]:
        """By op of the whole program its block; by block its kind and its layer."""
        columns, (source, _) = self.columns, self.sources
        turn, phase = self._places(columns.block_layers)
        inside = turn != NONE
        family = _numbered((columns.block_kinds, phase), inside)
        alone = np.flatnonzero(~inside)
        count, each = int(family.max(initial=NONE)) + 1, self.every
        number = np.where(inside, len(alone) + family * each, 0)
        number[alone] = np.arange(len(alone))
        one, following = (at[columns.block[self.bodied[0]] != NONE] for at in self.bodied)
        own, other = columns.block[one], columns.block[following]
        away, later = turn[own] - self.turn[one], turn[other] - self.turn[following]
        moves = (family[own] == family[other]) & (away == later) & inside[own]
        if not (moves | (own == other)).all():
            raise IrregularError("ops of a body are in other blocks in what follows it")
        block, t = columns.block[source], self.turn[source]
        far = np.where(turn[block] > self.middle, turn[block] + self.more, turn[block])
        at = np.where(t != NONE, self.turns + turn[block] - t, far)
        found = number[block] + np.where(inside[block], at, 0)
        kinds = np.zeros(len(alone) + count * each, dtype=np.int64)
        layers = np.full(len(kinds), NONE, dtype=np.int64)
        kinds[number[alone]] = columns.block_kinds[alone]
        layers[number[alone]] = columns.block_layers[alone]
        places = number[inside][:, None] + np.arange(each)
        kinds[places] = columns.block_kinds[inside][:, None]
        layers[places] = self._layers(np.arange(each), phase[inside][:, None])
        return np.where(block == NONE, NONE, found), kinds, layers

    def _layers(self, turns: Indices, phase: Indices) -> Indices:
        """The layers at some places of turns; at the step's end they are in the model's order."""
        every = np.array(sorted(self.run.every) if self.run.at_end else self.run.every)
        return np.asarray(every[turns * self.run.period + phase])


def _numbered(keys: tuple[Indices, ...], inside: Flags) -> Indices:
    """A number for each entry inside, equal for equal keys; NONE for others."""
    found = np.full(len(inside), NONE, dtype=np.int64)
    mixed = np.zeros(int(inside.sum()), dtype=np.int64)
    for key in keys:
        own = key[inside] + 1
        mixed = mixed * (int(own.max(initial=0)) + 1) + own
        mixed = np.unique(mixed, return_inverse=True)[1].reshape(-1)
    found[inside] = mixed
    return found


def _places_within(lengths: Indices) -> Indices:
    """0, 1, ... up to each length."""
    ends = np.cumsum(lengths)
    return np.asarray(np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths))


def _counted_within(keys: Indices, order: Indices) -> Indices:
    """By entry how many with equal keys come before it, in that order."""
    every = np.lexsort((order, *keys))
    own = keys[:, every]
    begins = np.concatenate([[True], (own[:, 1:] != own[:, :-1]).any(axis=0)])[: len(every)]
    first = np.maximum.accumulate(np.where(begins, np.arange(len(every)), 0))
    found = np.empty(len(every), dtype=np.int64)
    found[every] = np.arange(len(every)) - first
    return found


def _with_further(offsets: Indices, places: Indices, which: Flags, more: int) -> Lists:
    """Lists with so many numbers more behind each of some places, each one larger."""
    if not which.any():
        return Lists(offsets, places)
    counts = np.where(which, 1 + more, 1)
    owner = Lists(offsets, places).owners
    found = np.repeat(places, counts) + _places_within(counts)
    lengths = np.zeros(len(offsets) - 1, dtype=np.int64)
    np.add.at(lengths, owner, counts)
    return Lists(np.concatenate([[0], np.cumsum(lengths)]), found)
