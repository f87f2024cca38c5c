"""Where an op stands in a program: in which layer and which micro-batch, by its name.

A folded program has the first and the last few layers (and micro-batches) of the whole one. `Cut`
says how many there are and which stand for those left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from workload.structure import Structure, memoized_on

_NAME = re.compile(r"(?:m(\d+)(?:\.|$))?(?:l(\d+)(?=\.|$))?")
NONE = -1


@dataclass(frozen=True, slots=True)
class OpPosition:
    """An op's micro-batch and layer, -1 where it belongs to none, and the rest of its name."""

    micro_batch: int
    layer: int
    rest: str

    def twin(self, axis: str, part: int) -> OpPosition:
        """The same op in another layer or, as `axis` says, another micro-batch."""
        if axis == "layer":
            return OpPosition(self.micro_batch, part, self.rest)
        return OpPosition(part, self.layer, self.rest)

    def __str__(self) -> str:
        words = [f"m{self.micro_batch}"] if self.micro_batch >= 0 else []
        words += [f"l{self.layer}{self.rest}"] if self.layer >= 0 else [self.rest]
        return ".".join(words)


@lru_cache(maxsize=1 << 16)
def position(name: str) -> OpPosition:
    """Read an op's name.

    >>> position("m1.l12.up.gather")
    Position(micro_batch=1, layer=12, rest='.up.gather')
    >>> str(position("l3.adamw")), position("loss.reduce").layer
    ('l3.adamw', -1)
    """
    match = _NAME.match(name)
    assert match is not None
    micro_batch, layer = (int(text) if text else NONE for text in match.groups())
    return OpPosition(micro_batch, layer, name[match.end() :])


@memoized_on
def positions_of(outline: Structure) -> tuple[OpPosition, ...]:
    """Where all ops stand."""
    return tuple(position(op.name) for op in outline.ops)


@memoized_on
def index_of(outline: Structure) -> dict[str, int]:
    """Op name to place in the program."""
    return {op.name: index for index, op in enumerate(outline.ops)}


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
    names = (str(fold.moved(where, layers, micro_batches)) for where in positions_of(outline))
    return np.array([index[name] for name in names], dtype=np.int64)
