"""How layers lie in the chunks of a pipeline, for models whose layers are of several kinds.

What a chunk holds is a layer of the base (`layer_kinds.py`) for each of its own, in the order of
the whole model. As chunks of such a model rarely hold the same, its layers need not divide: every
chunk has the average number rounded down or up, those with more in the middle, away from the
model's ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from math import lcm

import numpy as np

from simulator.search.bounds.layer_kinds import (
    NAMES,
    attends_differently,
    has_dense_and_experts,
    has_kinds,
    name_of,
    names_of,
    of_one_kind,
)
from topologies.records import record
from workload.gpt import GPT
from workload.models import moe
from workload.sizes.arrays import Counts, Indices
from workload.stages import nearly_even

EXPERTS = tuple(name for (having, _), name in NAMES.items() if having)
WHOLE = tuple(name for (_, whole), name in NAMES.items() if whole)
OWN, REST, AHEAD = "own", "rest", "ahead"
FEW = 8  # layers, or units of several, the middle ones of which are mostly alike


@record(slots=False)
class ModelEnds:
    """Which ends of the model a chunk has: the embedding (`first`), the head (`last`)."""

    first: bool = False
    last: bool = False

    @property
    def alone(self) -> bool:
        """Whether it is the whole model."""
        return self.first and self.last

    @property
    def parts(self) -> list[str]:
        """The parts of the model that a chunk has beside layers."""
        return [*(["embed"] if self.first else []), *(["head"] if self.last else [])]


@record(slots=False)
class ChunkLayers:
    """The layers of a chunk: for each the layer of the base that it is like.

    They are those of a model with `dense` layers without experts in front, behind which every
    `expert_every`-th has some, and every `global_every`-th of all attends to all tokens; the first
    `skip` are left out. Behind the first `prefix` of them units of `period` layers recur, and
    perhaps a part of one.
    """

    bases: tuple[int, ...]
    dense: int = 0
    skip: int = 0
    prefix: int = 0
    period: int = 1
    expert_every: int = 1
    global_every: int = 0

    @property
    def units(self) -> int:
        """How many units recur."""
        return (len(self.bases) - self.prefix) // self.period

    def shortened(self) -> tuple[ChunkLayers, int]:
        """The layers with at most FEW units, and how many units were left out."""
        more = max(self.units - FEW, 0)
        if not more:
            return self, 0
        behind = self.prefix + more * self.period
        bases = self.bases[: self.prefix] + self.bases[behind:]
        return replace(self, bases=bases, dense=min(self.dense, self.skip + len(bases))), more

    def unit_of(self, layer: int) -> tuple[int, int] | None:
        """Of a layer of the model the unit in which it recurs, and its place there."""
        unit, place = divmod(layer - self.skip - self.prefix, self.period)
        return (unit, place) if 0 <= unit < self.units else None

    def model(self, gpt: GPT) -> GPT:
        """A model that has these layers behind those that are left out."""
        layers = self.skip + len(self.bases)
        if not has_kinds(gpt):
            return of_one_kind(gpt, layers)
        own = gpt.changed(layers=layers, dense_layers=self.dense)
        return own.changed(expert_every=self.expert_every, global_every=self.global_every)


def plain_layers(count: int) -> ChunkLayers:
    """So many layers of the one kind that a model has."""
    return ChunkLayers((0,) * count)


def chunk_layers(gpt: GPT, part: range) -> ChunkLayers:
    """Some neighbouring layers of a model with several kinds."""
    names, dense = names_of(gpt), gpt.moe.dense_layers
    bases = tuple(names.index(name_of(gpt, layer)) for layer in part)
    in_windows = gpt.attention.global_every if attends_differently(gpt) else 1
    of_experts = gpt.moe.expert_every if has_dense_and_experts(gpt) else 1
    # Its model begins where windows do, and where layers with experts do or ahead of these.
    begin = max(
        first
        for first in range(0, part.start + 1, in_windows)
        if first <= dense or (first - dense) % of_experts == 0
    )
    having = any(moe.has_experts(gpt, layer) for layer in part)
    prefix = max(dense - part.start, 0) if having else 0
    without = max(dense - begin, 0) if having else part.stop - begin if gpt.moe.experts else 0
    period = lcm(in_windows, of_experts if having else 1)
    turns = gpt.moe.expert_every, gpt.attention.global_every
    return ChunkLayers(bases, without, part.start - begin, prefix, period, *turns)


@record(slots=False)
class Layout:
    """The layers of each chunk of a pipeline, from the first chunk to the last."""

    pp: int
    vpp: int
    chunks: tuple[ChunkLayers, ...]
    names: tuple[str, ...]  # of kinds, by their numbers in the base

    @cached_property
    def fullest(self) -> int:
        """The stage that is fullest between the first and the last, if there are any; of equal ones
        the last, which waits longest."""
        inside = range(1, self.pp - 1) or range(self.pp - 1, self.pp)
        return max(inside, key=lambda stage: (*self.fullness(stage), stage))

    def fullness(self, stage: int) -> tuple[int, int, int]:
        """By what a stage is fuller than another: layers with experts, those that attend to all
        tokens where others have a window, then all."""
        kinds = self.kinds(stage)
        of_each = dict(zip(self.names, kinds, strict=True))
        experts, whole = (sum(of_each.get(name, 0) for name in some) for some in (EXPERTS, WHOLE))
        return experts, whole, sum(kinds)

    def chunks_of(self, stage: int) -> list[ChunkLayers]:
        """The chunks of a stage."""
        return list(self.chunks[stage :: self.pp])

    def kinds(self, stage: int) -> tuple[int, ...]:
        """How many layers of each kind a stage has."""
        count = Counter(base for chunk in self.chunks_of(stage) for base in chunk.bases)
        return tuple(count[base] for base in range(len(self.names)))

    def stage(self, ends: ModelEnds) -> int:
        """The stage with these ends of the model; the fullest of those without."""
        if ends.first:
            return 0
        return self.pp - 1 if ends.last else self.fullest

    def of(self, ends: ModelEnds, which: str) -> Mapping[ChunkLayers, int]:
        """Chunks, and how many there are of each: a stage's own one with these ends, the rest of
        it, or of the stages ahead of it each one, without the first stage."""
        if (ends, which) not in self._known:
            stage = self.stage(ends)
            chunks = self.chunks_of(stage)
            own = Counter(chunks[-1:] if ends.last and not ends.first else chunks[:1])
            found = {OWN: own, REST: Counter(chunks) - own, AHEAD: Counter(self.chunks[1:stage])}
            self._known[ends, which] = found[which]
        return self._known[ends, which]

    @cached_property
    def _known(self) -> dict[tuple[ModelEnds, str], Mapping[ChunkLayers, int]]:
        return {}


@record(slots=False)
class Layouts:
    """All layouts of a problem with several kinds of layers, numbered."""

    every: tuple[Layout, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds of layers, by their numbers in the base."""
        return self.every[0].names

    @cached_property
    def numbers(self) -> Mapping[tuple[int, int], int]:
        """The number of the layout with so many stages of so many chunks."""
        return {(each.pp, each.vpp): at for at, each in enumerate(self.every)}

    @cached_property
    def _counts(self) -> dict[tuple[ModelEnds, str], Counts]:
        return {}

    def counts(self, ends: ModelEnds, which: str) -> Counts:
        """Layers of each kind in some chunks (see `Layout.of`), (kinds, layouts)."""
        if (ends, which) not in self._counts:
            table = np.zeros((len(self.names), len(self.every)), dtype=np.int64)
            for at, layout in enumerate(self.every):
                for chunk, count in layout.of(ends, which).items():
                    for base in chunk.bases:
                        table[base, at] += count
            self._counts[ends, which] = table
        return self._counts[ends, which]

    @cached_property
    def _least(self) -> Counts:
        """The least layers of each kind that a stage has, (kinds, layouts)."""
        table = np.zeros((len(self.names), len(self.every)), dtype=np.int64)
        for at, layout in enumerate(self.every):
            stages = [layout.kinds(stage) for stage in range(layout.pp)]
            table[:, at] = np.min(stages, axis=0)
        return table

    def least(self, layout: Indices) -> dict[str, Counts]:
        """By kind the least layers that a stage has, for some numbers of layouts."""
        return dict(zip(self.names, self._least[:, layout], strict=True))

    def held(self, ends: ModelEnds, which: str, layout: Indices) -> dict[str, Counts]:
        """By kind the layers in some chunks (see `Layout.of`), for some numbers of layouts."""
        return dict(zip(self.names, self.counts(ends, which)[:, layout], strict=True))


def layouts_of(gpt: GPT, pairs: Iterable[tuple[int, int]]) -> Layouts | None:
    """The layouts of so many stages of so many chunks each; None for layers of one kind."""
    if not has_kinds(gpt):
        return None
    return Layouts(tuple(layout_of(gpt, *pair) for pair in pairs))


def layout_of(gpt: GPT, pp: int, vpp: int) -> Layout:
    """The layout of a model with several kinds of layers."""
    ends = np.cumsum([0, *nearly_even(gpt.layers, pp * vpp)]).tolist()
    chunks = tuple(chunk_layers(gpt, range(a, b)) for a, b in pairwise(ends))
    return Layout(pp, vpp, chunks, names_of(gpt))


def interleaves(gpt: GPT, pp: int) -> list[int]:
    """Into how many chunks the stages of such a model can be split: of numbers with the same
    largest chunk the least, since more would only send more messages."""
    found = dict[int, int]()
    for count in range(gpt.layers // pp, 0, -1):
        found[-(-gpt.layers // (pp * count))] = count
    return sorted(found.values())
