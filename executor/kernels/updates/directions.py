"""Random directions that every plan draws alike: a number depends on its place alone.

Element i of a whole parameter, flattened, has along a direction the standard normal number
sqrt(-2 ln((a + 1) / 2^27)) cos(2 pi b / 2^26) (Box and Muller, 1958), where a and b are the upper
27 and the lower 26 of 53 bits. With all arithmetic modulo 2^64, these are the upper 53 bits of
mix(i * 0x9E3779B97F4A7C15 + salt), where mix is MurmurHash3's 64-bit finaliser and salt the first 8
bytes, least significant first, of the SHA-256 of "direction/parameter". What pads a parameter does
not move.

A direction is called "seed/step", or of those that a run chooses from "seed/of K/number", where the
number of a replica is the first 8 bytes, least significant first, of the SHA-256 of
"seed/step/replica", modulo K.
"""

from __future__ import annotations

import hashlib
from math import pi, prod

import torch

from executor.kernels.hashing import BITS, STRIDE, signed, upper_bits
from executor.rank_context import RankContext
from topologies.records import record
from workload.op import Op

DRAWN_BYTES = 96  # what drawing takes an element: 8 bytes a dozen times
ANGLE_BITS = 26
RADIUS_BITS = BITS - ANGLE_BITS
Axes = tuple[str, ...]
Sizes = tuple[int, ...]
Cut = tuple[Sizes, Sizes, tuple[Axes, ...], Sizes, Axes, int]


def directions_of(op: Op, at: RankContext) -> list[str]:
    """The directions of all replicas in this step, in their order; one if they share it."""
    count, replicas = op.attributes["candidates"], range(op.attributes["directions"])
    if not count:
        return [f"{at.seed}/{at.step}"]
    numbers = (_hash(f"{at.seed}/{at.step}/{replica}") % count for replica in replicas)
    return [f"{at.seed}/of {count}/{number}" for number in numbers]


def own_direction(op: Op, at: RankContext) -> str:
    """The direction of this rank's replica."""
    every = directions_of(op, at)
    return every[at.part(at.grid.replicas_of("weights")) % len(every)]


@record
class Cutting:
    """Which part of a parameter a rank holds: a layout's shape, padded shape, split, bands, flat
    axes and tail, as an op has them in `cuts`."""

    cut: Cut
    at: RankContext

    def places(self, part: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Where in the flat whole parameter some elements of the flattened part are, and which are
        in it, if any may be none of it."""
        shape, padded, split, _, flat, tail = self.cut
        grid, at = self.at.grid, self.at
        *above, width = (n // grid.size(*axes) for n, axes in zip(padded, split, strict=True))
        elements = prod(above) * width
        first = at.part(flat) * ((elements + tail) // grid.size(*flat))
        index = torch.arange(first + part.start, first + part.stop, device=at.device)
        inside = index < elements if tail else None
        places = self._among_columns(index, width) if grid.size(*split[-1]) > 1 else index
        if above:
            places += at.part(split[0]) * prod(above) * shape[-1]
        if padded != shape:
            real = places < prod(shape)
            inside = real if inside is None else inside & real
        return places, inside

    def _among_columns(self, index: torch.Tensor, width: int) -> torch.Tensor:
        """Places in a tile of so many columns as places among all columns: each band is split by
        itself."""
        shape, _, split, bands, _, _ = self.cut
        parts, mine = self.at.grid.size(*split[-1]), self.at.part(split[-1])
        rows = index // width
        columns = index - rows * width
        places = rows.mul_(shape[-1]).add_(columns)
        start, before = 0, 0
        for band in bands or shape[-1:]:
            further = start - start // parts + mine * band // parts
            places += (columns >= start // parts) * (further - before)
            start, before = start + band, further
        return places


def draw(
    direction: str, parameter: str, cutting: Cutting, part: slice, dtype: torch.dtype
) -> torch.Tensor:
    """The numbers of some elements of a rank's flattened part of a parameter along a direction."""
    places, inside = cutting.places(part)
    salt = signed(_hash(f"{direction}/{parameter}"))
    bits = upper_bits(places.mul_(signed(STRIDE)).add_(salt))
    radius = (bits >> ANGLE_BITS).add_(1).to(dtype).mul_(2.0**-RADIUS_BITS)
    angle = bits.bitwise_and_((1 << ANGLE_BITS) - 1).to(dtype).mul_(2.0**-ANGLE_BITS)
    drawn = radius.log_().mul_(-2).sqrt_().mul_(angle.mul_(2 * pi).cos_())
    return drawn if inside is None else drawn.mul_(inside)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
