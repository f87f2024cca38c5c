"""Where a rank is, and the numbers that its kernels need beyond their operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import torch

from executor.launching.device_use import AUTO
from executor.launching.task_specs import AdamW
from executor.streams import SideStreams
from executor.training.chosen_experts import ChosenExperts
from topologies.records import record
from workload.grid import Axes, Grid
from workload.op import Part

DTYPES = {
    "fp8": torch.uint8,  # which of the formats of a byte, the ops say
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "uint16": torch.uint16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
# What a kernel may hold beside its operands at most: a part of a core's cache, or of a GPU's memory
# what still keeps it busy. Chosen, not measured.
SCRATCH_BYTES = {"cpu": 1 << 20, "cuda": 1 << 26}
# In a step no more than this share of the program's peak, but never less than a call is worth.
SCRATCH_SHARE, LEAST_SCRATCH_BYTES = 1 / 128, {"cpu": 1 << 17, "cuda": 1 << 24}


@record
class StepNumbers:
    """What kernels read on the device of a step's number and learning rate, so that a captured
    step, which makes the same calls each time, has those of the step it is replayed in."""

    step: torch.Tensor
    lr: torch.Tensor

    @staticmethod
    def on(device: torch.device) -> StepNumbers:
        """Numbers on a device, in the precision in which fused AdamW takes a rate there."""
        rate = torch.float32 if device.type == "cuda" else torch.float64
        return StepNumbers(
            torch.zeros((), device=device), torch.zeros((), dtype=rate, device=device)
        )

    def fill(self, step: int, lr: float) -> None:
        """Set both, by kernels that the host does not wait for."""
        self.step.fill_(step)
        self.lr.fill_(lr)


@record(kw_only=True)
class RankContext:
    """One rank's place on the grid, its device with the side streams there, and the step it is in
    (counted from 1).

    `seed` is what dropout draws from, the same on every rank. `scratch` is how many bytes of
    temporaries a kernel may hold at once, 0 for what suits the device. `grad_norm` is where a step
    leaves the global norm of its gradients before they are clipped, `numbers` has the step's own
    as tensors. `attention` names the kernels of the attention core (`DeviceUse`). `chosen` counts
    choices of experts, where they are asked for. Of `ways` directions in which micro-batches pass
    the stages, this rank runs the `turned` parts of the model for the second one.
    """

    grid: Grid
    rank: int
    device: torch.device
    adamw: AdamW
    step: int = 1
    seed: int = 0
    scratch: int = 0
    grad_norm: torch.Tensor | None = field(default=None, repr=False, compare=False)
    numbers: StepNumbers | None = field(default=None, repr=False, compare=False)
    attention: str = AUTO
    ways: int = 1
    turned: frozenset[Part] = frozenset()
    chosen: ChosenExperts | None = field(default=None, repr=False, compare=False)
    streams: SideStreams = field(default_factory=SideStreams, repr=False, compare=False)
    coordinates: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out where the rank sits on each axis: kernels ask for it op by op."""
        object.__setattr__(self, "coordinates", self.grid.coordinates(self.rank))

    @property
    def scratch_bytes(self) -> int:
        """How many bytes of temporaries a kernel may hold at once."""
        return self.scratch or SCRATCH_BYTES[self.device.type]

    def index(self, axis: str) -> int:
        """This rank's coordinate on an axis."""
        return self.coordinates[axis]

    def part_of(self, what: str) -> int:
        """Which part of something this rank holds; the first axis of its shards varies fastest."""
        return self.part(self.grid.shards_of(what))

    def part(self, axes: Axes) -> int:
        """Which part this rank holds of what some axes split; the first one varies fastest."""
        part = 0
        for axis in reversed(axes):
            part = part * self.grid.size(axis) + self.index(axis)
        return part

    def first_sequence(self, micro_batch: int, sequences: int, part: Part) -> int:
        """Where in the step's batch the sequences of a micro-batch begin, as a part of the model
        gets it; so do rows, by rows."""
        cells = self.grid.parts_of("sequences") * self.ways
        own = self.part_of("sequences") * self.ways + (part in self.turned)
        return (micro_batch * cells + own) * sequences

    @property
    def vocabulary_part(self) -> int:
        """Which part of the vocabulary this rank holds."""
        return self.part_of("vocabulary")

    def stage_peer(self, further: int) -> int:
        """The rank at this place so many stages further, around the ring of stages."""
        stage = (self.index("pp") + further) % self.grid.pp
        return self.grid.rank({**self.coordinates, "pp": stage})


def scratch_of(peak_bytes: int, device: torch.device) -> int:
    """The temporaries that kernels of a program may hold, given its peak."""
    share = max(int(SCRATCH_SHARE * peak_bytes), LEAST_SCRATCH_BYTES[device.type])
    return min(share, SCRATCH_BYTES[device.type])
