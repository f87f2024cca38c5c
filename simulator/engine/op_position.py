"""Where an op stands in a program: in which layer and which micro-batch.

A folded program has the first and the last few layers (and micro-batches) of the whole one. `Cut`
says how many there are and which stand for those left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workload.naming import op_name
from workload.op import Op, Part, layer_part
from workload.structure import Structure, memoized_on


@dataclass(frozen=True, slots=True)
class OpPosition:
    """An op's micro-batch and layer, NONE where there is none, and the rest of its identity."""

    micro_batch: int
    layer: int
    rest: tuple[Part, bool, str]

    def counterpart(self, axis: str, part: int) -> OpPosition:
        """The same op in another layer or, as `axis` says, another micro-batch."""
        if axis == "layer":
            return OpPosition(self.micro_batch, part, self.rest)
        return OpPosition(part, self.layer, self.rest)

    def __str__(self) -> str:
        part, again, label = self.rest
        part = layer_part(self.layer) if part.is_layer else part
        return op_name(self.micro_batch, part, label, recomputed=again)


def position(op: Op) -> OpPosition:
    """Where an op stands."""
    m, part, again, label = op.identity
    kind = layer_part(0) if part.is_layer else part
    return OpPosition(m, part.layer, (kind, again, label))


@memoized_on
def positions_of(outline: Structure) -> tuple[OpPosition, ...]:
    """Where all ops stand."""
    return tuple(map(position, outline.ops))


@memoized_on
def index_of(outline: Structure) -> dict[OpPosition, int]:
    """Position to place in the program."""
    return {where: index for index, where in enumerate(positions_of(outline))}


@dataclass(frozen=True, slots=True)
class Cut:
    """A dimension of `whole` like parts, of which `kept` stand in a folded program, cut at half.

    The part just behind the cut stands for the `omitted` ones too.
    """

    kept: int
    whole: int

    @property
    def omitted(self) -> int:
        """How many parts the folded program leaves out."""
        return self.whole - self.kept

    @property
    def back(self) -> int:
        """The first part behind the cut."""
        return self.kept // 2

    def moved(self, index: int, by: int) -> int:
        """Where a part stands once `by` more are put in at the cut."""
        return index + by if index >= self.back else index


@dataclass(frozen=True, slots=True)
class Fold:
    """A folded program's two cuts."""

    layers: Cut
    micro_batches: Cut

    def moved(self, at: OpPosition, layers: int, micro_batches: int) -> OpPosition:
        """Where an op stands in a program of that many more layers and micro-batches."""
        return OpPosition(
            self.micro_batches.moved(at.micro_batch, micro_batches),
            self.layers.moved(at.layer, layers),
            at.rest,
        )

    def copies(self, at: OpPosition) -> int:
        """How many ops of the whole program this one stands for."""
        copies = 1
        if at.layer == self.layers.back:
            copies *= 1 + self.layers.omitted
        if at.micro_batch == self.micro_batches.back:
            copies *= 1 + self.micro_batches.omitted
        return copies


@memoized_on
def copies_in(outline: Structure, fold: Fold) -> list[int]:
    """How many ops of the whole program each of a folded program's stands for."""
    return [fold.copies(where) for where in positions_of(outline)]


@memoized_on
def places_in(
    outline: Structure, other: Structure, fold: Fold, layers: int, micro_batches: int
) -> NDArray[np.int64]:
    """The places of a folded program's ops in the one of that many more layers and
    micro-batches."""
    index = index_of(other)
    moved = (fold.moved(where, layers, micro_batches) for where in positions_of(outline))
    return np.array([index[where] for where in moved], dtype=np.int64)
