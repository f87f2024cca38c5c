"""Where a rank is, and the numbers that its kernels need beyond their operands."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from executor.streams import SideStreams
from executor.tasks import AdamW
from workload.grid import Grid

DTYPES = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int64": torch.int64,
    "uint8": torch.uint8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank's place on the grid, its device with the side streams there, and the step it is in
    (counted from 1).

    `seed` is what dropout draws from, the same on every rank.
    """

    grid: Grid
    rank: int
    device: torch.device
    adamw: AdamW
    step: int = 1
    seed: int = 0
    streams: SideStreams = field(default_factory=SideStreams, repr=False, compare=False)

    def index(self, axis: str) -> int:
        """This rank's coordinate on an axis."""
        return self.grid.coordinates(self.rank)[axis]

    def first_sequence(self, micro_batch: int, sequences: int) -> int:
        """Where in the step's batch the sequences of a micro-batch begin; so do rows, by rows."""
        cell = self.index("z") + self.grid.z * self.index("data")
        return (micro_batch * self.grid.size("z", "data") + cell) * sequences

    @property
    def vocabulary_part(self) -> int:
        """Which part of the vocabulary this rank holds: x varies faster than y."""
        return self.index("x") + self.grid.x * self.index("y")

    def stage_peer(self, further: int) -> int:
        """The rank at this place so many stages further, around the ring of stages."""
        places = self.grid.coordinates(self.rank)
        return self.grid.rank({**places, "pipe": (places["pipe"] + further) % self.grid.pipe})
