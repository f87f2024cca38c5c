"""Each layer is written once; the ops and buffers of further layers like it are copies.

Which ops a layer has follows from its kind, from its inputs, and from whether its gradients add to
earlier ones. Its number and its micro-batch occur in names alone. So what one layer writes in one
micro-batch is kept as a `Stretch`, and the next layer like it gets a copy with other names: names
that begin with the layer's prefix get the other layer's prefix, and what the first one was given
(its input, the gradient of its output, weights that are gathered already) is replaced by what the
other is given. All other buffers that a layer reads or writes exist throughout the step.
Tests compare with programs in which every layer is written by itself.

Cost: 2 to 3 us an op, where to write one takes 8 to 15.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar, cast

from topologies.records import record
from workload.layout import Layout
from workload.lowering.builder import Builder
from workload.lowering.parameter import Parameter
from workload.naming import op_prefix
from workload.op import MODEL, NONE, Block, Buffer, Op, Part
from workload.op_attributes import Attributes

Saved = TypeVar("Saved")
Named = TypeVar("Named")
Whole = tuple[int, str]  # of `Builder.gathered`: a micro-batch or NONE, and a weight
MOST_PLANS = 4  # whose layers a session keeps
EVERYWHERE = 3  # the place in `Naming.begins` of names of no layer


class Naming:
    """How names of a layer in a micro-batch begin; its parameters are declared in NONE. `begins`
    has the prefixes of recomputed ops, of other ops and of parameters; the empty prefix, for names
    of no layer; and the whole names of what the layer is given."""

    def __init__(self, m: int, part: Part, given: Sequence[str] = ()) -> None:
        self.micro_batch, self.part = m, part
        own = op_prefix(m, part, recomputed=True), op_prefix(m, part), f"{part}."
        self.begins = (*own, "", *given)

    def split(self, name: str) -> tuple[int, str]:
        """Which of `begins` a name begins with, and what follows."""
        given = self.begins[EVERYWHERE + 1 :]
        if name in given:
            return EVERYWHERE + 1 + given.index(name), ""
        for at, prefix in enumerate(self.begins[:EVERYWHERE]):
            if name.startswith(prefix):
                return at, name[len(prefix) :]
        return EVERYWHERE, name

    def renamed(self, value: Named, to: Naming) -> Named:
        """A value with the names in it that it has in another place."""
        return cast(Named, self._renamed(value, to))

    def _renamed(self, value: Any, to: Naming) -> Any:
        if isinstance(value, str):
            at, rest = self.split(value)
            return to.begins[at] + rest
        if isinstance(value, dict):
            return {key: self._renamed(each, to) for key, each in value.items()}
        if isinstance(value, tuple | list):
            every = [self._renamed(each, to) for each in value]
            return type(value)(*every) if hasattr(value, "_fields") else type(value)(every)
        if is_dataclass(value) and not isinstance(value, type):
            values = (getattr(value, each.name) for each in fields(value))
            return type(value)(*[self._renamed(each, to) for each in values])
        return value

    def moved(self, micro_batch: int, part: Part, to: Naming) -> tuple[int, Part]:
        """A micro-batch and a part, with the other place's instead of this one's."""
        m = to.micro_batch if micro_batch == self.micro_batch else micro_batch
        return m, to.part if part == self.part else part


NOWHERE = Naming(NONE, MODEL)


Picks = Callable[[Sequence[str]], tuple[str, ...]]


class Row(NamedTuple):
    """An op of a stretch: what picks its name and its operands among all names, which of its blocks
    it is in, whether micro-batch and part are those of the layer, and its attributes that have
    names."""

    op: Op
    name: int
    reads: Picks
    writes: Picks
    block: int
    own: tuple[bool, bool]
    named: Mapping[str, object]


@record(slots=False)
class Stretch:
    """What a layer wrote in a micro-batch, and its `result`. `gathered` are weights whose tiles it
    gathered and keeps for later, `dropped` those whose tiles it keeps no longer."""

    like: int
    naming: Naming
    ops: Sequence[Op]
    buffers: Sequence[Buffer]
    dropped: Sequence[Whole]
    gathered: Mapping[Whole, str]
    result: tuple[str, Any]

    @cached_property
    def names(self) -> list[tuple[str, int, str]]:
        """All names in it, with how they are split."""
        operands = (name for op in self.ops for name in (op.name, *op.reads, *op.writes))
        return _split([*operands, *_names_of(self.buffers)], self.naming)

    @cached_property
    def others(self) -> set[str]:
        """The names of no layer that its ops read or write."""
        operands = {name for op in self.ops for name in (*op.reads, *op.writes)}
        return {name for name, at, _ in self.names if at == EVERYWHERE and name in operands}

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks of its ops."""
        return list(dict.fromkeys(op.block for op in self.ops))

    @cached_property
    def rows(self) -> list[Row]:
        """Its ops as rows."""
        place = {name: at for at, (name, _, _) in enumerate(self.names)}
        return [_row(op, place, self.blocks, self.naming) for op in self.ops]

    @cached_property
    def held(self) -> list[tuple[Buffer, int, int, int]]:
        """Its buffers, as `_held` has them."""
        return _held(self.buffers, self.names)

    def copied(self, b: Builder, to: Naming) -> Written[Any]:
        """Emit what the layer wrote once more in another place; returns its result there."""
        assert all(b.buffers[name].persistent for name in self.others), "it is another layer's"
        one, begins, m, part = self.naming, to.begins, to.micro_batch, to.part
        names = [begins[at] + rest for _, at, rest in self.names]
        _add_buffers(b, self.held, names, one, to)
        blocks = [self._moved(block, b.block, to) for block in self.blocks]
        add = b.ops.append
        for op, name, reads, writes, block, (own_m, own_part), words in self.rows:
            how = {**op.attributes, **one.renamed(words, to)} if words else op.attributes
            add(
                Op(
                    names[name],
                    op.kind,
                    reads(names),
                    writes(names),
                    blocks[block],
                    op.stream,
                    op.axes,
                    op.nbytes,
                    op.flops,
                    op.replicas,
                    op.dtype,
                    cast(Attributes, how),
                    m if own_m else op.micro_batch,
                    part if own_part else op.part,
                    op.label,
                    op.purpose,
                    op.launches,
                    op.module,
                )
            )
        for key in self.dropped:
            del b.gathered[self._key(key, to)]
        for key, full in self.gathered.items():
            b.gathered[self._key(key, to)] = one.renamed(full, to)
        out, saved = self.result
        return Written(one.renamed(out, to), self.like, saved, (one, to))

    def _moved(self, block: Block, here: Block, to: Naming) -> Block:
        m, part = self.naming.moved(block.micro_batch, block.part, to)
        found = block._replace(micro_batch=m, part=part)
        return here if found == here else found

    def _key(self, key: Whole, to: Naming) -> Whole:
        m, weight = key
        return m if m == NONE else to.micro_batch, self.naming.renamed(weight, to)


@record
class Declared:
    """The buffers and parameters of a layer, with the layouts of these and of their states."""

    naming: Naming
    names: Sequence[tuple[str, int, str]]
    held: Sequence[tuple[Buffer, int, int, int]]
    layouts: Sequence[Mapping[str, Layout]]
    parameters: Sequence[Parameter]

    def copy(self, b: Builder, to: Naming) -> None:
        """Declare the same for another layer."""
        one = self.naming
        names = [to.begins[at] + rest for _, at, rest in self.names]
        _add_buffers(b, self.held, names, one, to)
        for every, own in zip((b.layouts, b.states), self.layouts, strict=True):
            every |= {one.renamed(name, to): layout for name, layout in own.items()}
        for each in self.parameters:
            about = (one.renamed(own, to) for own in (each.name, each.reduced, each.trained))
            name, reduced, trained = about
            other = replace(each, name=name, owner=to.part, reduced=reduced, trained=trained)
            b.parameters[name] = other


def _add_buffers(
    b: Builder,
    buffers: Sequence[tuple[Buffer, int, int, int]],
    names: Sequence[str],
    one: Naming,
    to: Naming,
) -> None:
    for of, name, parameter, rows_of in buffers:
        m, part = one.moved(of.micro_batch, of.part, to)
        about = of.shape, of.dtype, of.role, of.persistent, of.replicas
        own = names[parameter], part, m, names[rows_of], of.rows_in
        b.add(Buffer(names[name], *about, *own))


def _held(
    buffers: Sequence[Buffer], names: Sequence[tuple[str, int, str]]
) -> list[tuple[Buffer, int, int, int]]:
    """Buffers with the places of their own names, of their parameters' and of those that count
    their rows."""
    place = {name: at for at, (name, _, _) in enumerate(names)}
    return [(of, place[of.name], place[of.parameter], place[of.rows_of]) for of in buffers]


def _split(names: Iterable[str], naming: Naming) -> list[tuple[str, int, str]]:
    return [(name, *naming.split(name)) for name in dict.fromkeys(names)]


def _names_of(buffers: Sequence[Buffer]) -> list[str]:
    return [name for each in buffers for name in (each.name, each.parameter, each.rows_of)]


@record
class Written(Generic[Saved]):
    """What a layer returned: its output, and what it saved, with the names of the stretch that it
    was copied from and its own. `like` is equal for layers that wrote the same but for names."""

    out: str
    like: int
    _saved: Saved
    _names: tuple[Naming, Naming] | None = None

    @property
    def saved(self) -> Saved:
        """What it saved, by its own names."""
        if self._names is None:
            return self._saved
        one, to = self._names
        return one.renamed(self._saved, to)


class WrittenLayers:
    """What layers have written and declared, by what it follows from."""

    def __init__(self) -> None:
        self.stretches: dict[Hashable, Stretch] = {}
        self.declared: dict[Hashable, Declared] = {}
        self.count = 0


class KeptLayers:
    """What layers of a session's last plans have written: stages of a plan have layers alike."""

    def __init__(self) -> None:
        self._all: dict[Hashable, WrittenLayers] = {}

    def of(self, key: Hashable) -> WrittenLayers:
        """What layers of a plan have written, by all that its builder reads except the stage."""
        self._all[key] = found = self._all.pop(key, None) or WrittenLayers()
        if len(self._all) > MOST_PLANS:
            del self._all[next(iter(self._all))]
        return found


class LayerCopies:
    """What the layers of a program have written so far, for others like them to copy."""

    def __init__(self, b: Builder, written: WrittenLayers) -> None:
        self._b, self._written = b, written
        self._weights: dict[Part, list[str]] = {}

    def declare(self, kind: Hashable, part: Part, declare: Callable[[], None]) -> None:
        """Declare a layer: as `declare` does, or as another layer of its kind was declared."""
        b, naming = self._b, Naming(NONE, part)
        if known := self._written.declared.get(kind):
            known.copy(b, naming)
            return
        every: tuple[dict[str, Any], ...] = b.buffers, b.layouts, b.states, b.parameters
        counts = [len(each) for each in every]
        declare()
        new = (dict(islice(own.items(), n, None)) for own, n in zip(every, counts, strict=True))
        buffers, layouts, states, parameters = new
        own = list(buffers.values())
        names = _split(_names_of(own), naming)
        described = list(parameters.values())
        held = _held(own, names)
        self._written.declared[kind] = Declared(naming, names, held, (layouts, states), described)

    def written(
        self,
        key: Hashable,
        given: Sequence[str],
        write: Callable[[], tuple[str, Saved]],
    ) -> Written[Saved]:
        """What the layer of the builder's block returns, which is written by `write`, or copied
        from one of the same key that was given the same."""
        m, part = self._b.block.micro_batch, self._b.block.part
        before = self._whole(m, part)
        weights = self._weights[part]
        naming = Naming(m, part, (*given, *before.values()))
        like = key, *((own == NONE, weights.index(weight)) for own, weight in before)
        if stretch := self._written.stretches.get(like):
            return stretch.copied(self._b, naming)
        ops, buffers = len(self._b.ops), len(self._b.buffers)
        result = write()
        self._written.count += 1
        if not self._b.away:  # copies to the host are awaited layers later
            after = self._whole(m, part)
            own = self._stretch(naming, (ops, buffers), (before, after), result)
            self._written.stretches[like] = own
        out, saved = result
        return Written(out, self._written.count, saved)

    def _whole(self, m: int, part: Part) -> dict[Whole, str]:
        """The weights of a layer that are whole, for a micro-batch or for all."""
        if not self._weights:
            for parameter in self._b.parameters.values():
                self._weights.setdefault(parameter.owner, []).append(parameter.name)
        gathered = self._b.gathered
        every = ((own, name) for name in self._weights[part] for own in (NONE, m))
        return {key: gathered[key] for key in every if key in gathered} if gathered else {}

    def _stretch(
        self,
        naming: Naming,
        begins: tuple[int, int],
        whole: tuple[dict[Whole, str], dict[Whole, str]],
        result: tuple[str, Any],
    ) -> Stretch:
        """What a layer wrote from so many ops and buffers on."""
        b, (before, after) = self._b, whole
        return Stretch(
            self._written.count,
            naming,
            b.ops[begins[0] :],
            list(islice(b.buffers.values(), begins[1], None)),
            [key for key in before if key not in after],
            {key: after[key] for key in b.gathered if key in after.keys() - before.keys()},
            result,
        )


def _row(op: Op, place: Mapping[str, int], blocks: Sequence[Block], naming: Naming) -> Row:
    words = {key: each for key, each in op.attributes.items() if isinstance(each, str | tuple)}
    named = {key: each for key, each in words.items() if naming.renamed(each, NOWHERE) != each}
    own = op.micro_batch == naming.micro_batch, op.part == naming.part
    reads, writes = (_picks([place[name] for name in way]) for way in (op.reads, op.writes))
    return Row(op, place[op.name], reads, writes, blocks.index(op.block), own, named)


def _picks(places: Sequence[int]) -> Picks:
    """What picks the entries at some places."""
    if len(places) > 1:
        return cast(Picks, itemgetter(*places))
    return lambda names: tuple([names[at] for at in places])
