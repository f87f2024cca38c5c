"""How layers lie in the chunks of a pipeline, for models whose layers are of several kinds.

Bounds come from the program of a model with one layer of each kind, its base: without experts, then
with them. What a chunk holds is a count of either kind, in the order of the whole model. As chunks
of such a model never hold the same, its layers need not divide: every chunk has the average number
rounded down or up, those with more in the middle, away from the model's ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from simulator.search.asked.v_shape import places
from workload.gpt import GPT
from workload.models import moe
from workload.op import HEAD, Part
from workload.pipeline.stages import nearly_even
from workload.sizes.arrays import Counts, Indices

LAYER = "layer"
KINDS = ("dense", "experts")  # of layers, by their numbers in the base
OWN, REST, AHEAD = "own", "rest", "ahead"
FEW = 8  # layers, or units of several, the middle ones of which are mostly alike


def has_kinds(gpt: GPT) -> bool:
    """Whether some of a model's layers have experts, and some have none."""
    return moe.layers_with_experts(gpt) not in (0, gpt.layers)


def base_of(gpt: GPT) -> GPT:
    """A model with one layer of each kind."""
    if has_kinds(gpt):
        return replace(gpt, layers=len(KINDS), dense_layers=1, expert_every=1)
    return _of_one_kind(gpt, 1)


def _of_one_kind(gpt: GPT, layers: int) -> GPT:
    """So many layers of the one kind that a model has."""
    unused = gpt.experts and not moe.layers_with_experts(gpt)
    return replace(gpt, layers=layers, dense_layers=layers if unused else 0)


def kind_of(part: Part, gpt: GPT) -> str:
    """The kind of a part of the base; what predicts further tokens is of the head."""
    if not is_own_layer(part, gpt):
        return HEAD.kind if part.is_layer else part.kind
    return KINDS[part.layer] if has_kinds(gpt) else part.kind


def is_own_layer(part: Part, gpt: GPT) -> bool:
    """Whether a part is one of the model's layers, not of those that predict further tokens."""
    return part.is_layer and part.layer < gpt.layers


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class ChunkLayers:
    """The layers of a chunk: for each the layer of the base that it is like.

    They are those of a model with `dense` layers without experts in front, of which the first
    `skip` are left out. Behind the first `prefix` of them units of `period` layers recur, and
    perhaps a part of one.
    """

    bases: tuple[int, ...]
    dense: int = 0
    skip: int = 0
    prefix: int = 0
    period: int = 1

    @property
    def units(self) -> int:
        """How many units recur."""
        return (len(self.bases) - self.prefix) // self.period

    def shortened(self) -> tuple[ChunkLayers, int]:
        """The same with at most FEW units, and how many were left out."""
        more = max(self.units - FEW, 0)
        if not more:
            return self, 0
        behind = self.prefix + more * self.period
        bases = self.bases[: self.prefix] + self.bases[behind:]
        return replace(self, bases=bases, dense=min(self.dense, len(bases))), more

    def unit_of(self, layer: int) -> tuple[int, int] | None:
        """Of a layer of the model the unit in which it recurs, and its place there."""
        unit, place = divmod(layer - self.skip - self.prefix, self.period)
        return (unit, place) if 0 <= unit < self.units else None

    def model(self, gpt: GPT) -> GPT:
        """A model that has these layers behind those that are left out."""
        layers = self.skip + len(self.bases)
        if not has_kinds(gpt):
            return _of_one_kind(gpt, layers)
        return replace(gpt, layers=layers, dense_layers=self.dense, expert_every=self.period)


def plain_layers(count: int) -> ChunkLayers:
    """So many layers of the one kind that a model has."""
    return ChunkLayers((0,) * count)


def chunk_layers(gpt: GPT, part: range) -> ChunkLayers:
    """Some neighbouring layers of a model with several kinds."""
    bases = tuple(int(moe.has_experts(gpt, layer)) for layer in part)
    if not any(bases) and part.start < gpt.dense_layers:
        return ChunkLayers(bases, len(bases))
    if part.start < gpt.dense_layers:
        dense = gpt.dense_layers - part.start
        return ChunkLayers(bases, dense, 0, dense, gpt.expert_every)
    skip = (part.start - gpt.dense_layers) % gpt.expert_every
    return ChunkLayers(bases, 0, skip, 0, gpt.expert_every)


@dataclass(frozen=True)
class Layout:
    """The layers of each chunk of a pipeline, from the first chunk to the last."""

    pipe: int
    interleave: int
    chunks: tuple[ChunkLayers, ...]
    in_v: bool = False

    @cached_property
    def fullest(self) -> int:
        """The stage with the most layers with experts, then of all, between the first and the last,
        if there are any; of equal ones the last, which waits longest."""
        inside = range(1, self.pipe - 1) or range(self.pipe - 1, self.pipe)
        return max(inside, key=lambda stage: (*self.kinds(stage)[::-1], stage))

    def chunks_of(self, stage: int) -> list[ChunkLayers]:
        """The chunks of a stage."""
        numbers = places(stage, self.pipe, self.interleave, in_v=self.in_v)
        return [self.chunks[number] for number in numbers]

    def kinds(self, stage: int) -> tuple[int, int]:
        """How many layers a stage has without experts, and with them."""
        bases = [base for chunk in self.chunks_of(stage) for base in chunk.bases]
        return len(bases) - sum(bases), sum(bases)

    def stage(self, ends: ModelEnds) -> int:
        """The stage with these ends of the model; the fullest of those without."""
        if ends.first:
            return 0
        return self.pipe - 1 if ends.last else self.fullest

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


@dataclass(frozen=True)
class Layouts:
    """All layouts of a problem with several kinds of layers, numbered."""

    every: tuple[Layout, ...]

    @cached_property
    def numbers(self) -> Mapping[tuple[int, int], int]:
        """The number of the layout with so many stages of so many chunks."""
        return {(each.pipe, each.interleave): at for at, each in enumerate(self.every)}

    @cached_property
    def _counts(self) -> dict[tuple[ModelEnds, str], Counts]:
        return {}

    def counts(self, ends: ModelEnds, which: str) -> Counts:
        """Layers of each kind in some chunks (see `Layout.of`), (kinds, layouts)."""
        if (ends, which) not in self._counts:
            table = np.zeros((len(KINDS), len(self.every)), dtype=np.int64)
            for at, layout in enumerate(self.every):
                for chunk, count in layout.of(ends, which).items():
                    for base in chunk.bases:
                        table[base, at] += count
            self._counts[ends, which] = table
        return self._counts[ends, which]

    @cached_property
    def _least(self) -> Counts:
        """The least layers of each kind that a stage has, (kinds, layouts)."""
        table = np.zeros((len(KINDS), len(self.every)), dtype=np.int64)
        for at, layout in enumerate(self.every):
            stages = [layout.kinds(stage) for stage in range(layout.pipe)]
            table[:, at] = np.min(stages, axis=0)
        return table

    def least(self, layout: Indices) -> dict[str, Counts]:
        """By kind the least layers that a stage has, for some numbers of layouts."""
        return dict(zip(KINDS, self._least[:, layout], strict=True))

    def held(self, ends: ModelEnds, which: str, layout: Indices) -> dict[str, Counts]:
        """The same by kind, for some numbers of layouts."""
        return dict(zip(KINDS, self.counts(ends, which)[:, layout], strict=True))


def layouts_of(gpt: GPT, pairs: Iterable[tuple[int, int]], *, in_v: bool = False) -> Layouts | None:
    """The layouts of so many stages of so many chunks each, round the ring of stages or in a V;
    None for layers of one kind."""
    if not has_kinds(gpt):
        return None
    every = (layout_of(gpt, *pair) for pair in pairs)
    return Layouts(tuple(replace(each, in_v=in_v) for each in every))


def layout_of(gpt: GPT, pipe: int, interleave: int) -> Layout:
    """The layout of a model with several kinds of layers."""
    ends = np.cumsum([0, *nearly_even(gpt.layers, pipe * interleave)]).tolist()
    chunks = tuple(chunk_layers(gpt, range(a, b)) for a, b in pairwise(ends))
    return Layout(pipe, interleave, chunks)


def interleaves(gpt: GPT, pipe: int) -> list[int]:
    """Into how many chunks the stages of such a model can be split: of numbers with the same
    largest chunk the least, since more would only send more messages."""
    found = dict[int, int]()
    for count in range(gpt.layers // pipe, 0, -1):
        found[-(-gpt.layers // (pipe * count))] = count
    return sorted(found.values())
