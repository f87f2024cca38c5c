"""The rank grid: five axes, x fastest, and the groups in which collectives run."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

AXES = ("x", "y", "z", "data", "pipe")


@dataclass(frozen=True, slots=True)
class Grid:
    """How many ranks there are along each axis. Rank order: x fastest, then y, z, data, pipe."""

    x: int = 1
    y: int = 1
    z: int = 1
    data: int = 1
    pipe: int = 1

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
        return prod(getattr(self, axis) for axis in axes)

    def stride(self, axis: str) -> int:
        """Distance in ranks between neighbours along an axis."""
        return prod(self.sizes[a] for a in AXES[: AXES.index(axis)])

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank sits on each axis."""
        return {axis: rank // self.stride(axis) % self.sizes[axis] for axis in AXES}

    def rank(self, coordinates: dict[str, int]) -> int:
        """The rank at these coordinates; axes left out count as 0."""
        return sum(self.stride(axis) * at for axis, at in coordinates.items())

    def groups(self, *axes: str) -> NDArray[np.int64]:
        """Every group over these axes: an array of shape (groups, members), in rank order."""
        shape = tuple(reversed(self.sizes.values()))
        ranks = np.arange(self.ranks, dtype=np.int64).reshape(shape)
        ordered = sorted(axes, key=AXES.index, reverse=True)
        places = [len(AXES) - 1 - AXES.index(axis) for axis in ordered]
        rest = [place for place in range(len(AXES)) if place not in places]
        return ranks.transpose(*rest, *places).reshape(-1, self.size(*axes))
