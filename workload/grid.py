"""The rank grid: five axes, x fastest, and the groups in which collectives run."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

AXES = ("x", "y", "z", "data", "pipe")
_DIMENSIONS = ("x", "y", "z", "shard", "replica", "pipe")
_PARTS = {"data": ("shard", "replica")}
ENDS = "ends"
LINK = "link"


@dataclass(frozen=True, slots=True)
class Grid:
    """How many ranks there are along each axis. Rank order: x fastest, then y, z, data, pipe.

    Of the data axis, runs of `shard` neighbours (0: all of them) share sharded state: "shard" names
    the axis within a run, "replica" the one across runs. "ends" names the pairs of the first and
    the last stage, "link3" those of the fourth stage and the next one in the ring of stages.
    """

    x: int = 1
    y: int = 1
    z: int = 1
    data: int = 1
    pipe: int = 1
    shard: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """Axis name to size, fastest axis first."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def ranks(self) -> int:
        """All ranks of the grid."""
        return prod(self.sizes.values())

    def size(self, *axes: str) -> int:
        """Ranks in one group over these axes together."""
        size = 1
        for axis in axes:
            size *= self._size(axis)
        return size

    def _size(self, axis: str) -> int:
        if axis == ENDS or axis.startswith(LINK):
            return min(self.pipe, 2)
        if axis == "replica":
            return self.data // self._size("shard")
        if axis == "shard":
            return self.shard or self.data
        size: int = getattr(self, axis)
        return size

    def _stages(self, pair: str) -> tuple[int, int]:
        first = 0 if pair == ENDS else int(pair.removeprefix(LINK))
        return first, self.pipe - 1 if pair == ENDS else (first + 1) % self.pipe

    def stride(self, axis: str) -> int:
        """Distance in ranks between neighbours along an axis."""
        dimension = _PARTS.get(axis, (axis,))[0]
        return self.size(*_DIMENSIONS[: _DIMENSIONS.index(dimension)])

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank sits on each axis, and on the two parts of data."""
        axes = dict.fromkeys((*AXES, *_DIMENSIONS))
        return {axis: rank // self.stride(axis) % self._size(axis) for axis in axes}

    def rank(self, coordinates: dict[str, int]) -> int:
        """The rank at these coordinates; axes left out count as 0."""
        return sum(self.stride(axis) * at for axis, at in coordinates.items() if axis in AXES)

    def groups(self, *axes: str) -> NDArray[np.int64]:
        """Every group over these axes: an array of shape (groups, members), in rank order.

        The groups hold every rank once, except over "ends" and links, where other stages are in
        none.
        """
        parts = {part for axis in axes for part in _PARTS.get(axis, (axis,))}
        shape = tuple(self._size(name) for name in reversed(_DIMENSIONS))
        ranks = np.arange(self.ranks, dtype=np.int64).reshape(shape)
        for pair in [axis for axis in axes if axis == ENDS or axis.startswith(LINK)]:
            ranks = ranks[sorted(set(self._stages(pair)))]
            parts = parts - {pair} | {"pipe"}
        ordered = sorted(parts, key=_DIMENSIONS.index, reverse=True)
        places = [len(_DIMENSIONS) - 1 - _DIMENSIONS.index(axis) for axis in ordered]
        rest = [place for place in range(len(_DIMENSIONS)) if place not in places]
        return ranks.transpose(*rest, *places).reshape(-1, self.size(*axes))
