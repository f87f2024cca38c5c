"""Ops and buffers: the words a program is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

COMPUTE = "compute"
STEP = "step"  # the block that closes a step: norm, clipping, AdamW
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
MESSAGES = ("send", "recv")
FORMS = ("NN", "NT", "TN")
ITEM_BYTES = {"bf16": 2, "fp32": 4, "fp64": 8, "int64": 8, "uint8": 1}
ROLES = ("parameters", "gradients", "optimizer", "activations", "gathered", "workspace", "host")
HOST = ROLES[-1]
NO_ATTRIBUTES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named tensor of one rank.

    `role` says what it counts as in the memory report; what has the role "host" lies in the host's
    memory and takes none of the device's. A `persistent` buffer exists before and
    after the step; any other lives from the op that first writes it to the last op that needs it.
    `replicas` is the number of ranks of the whole grid that hold the same values.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    persistent: bool = False
    replicas: int = 1

    @property
    def elements(self) -> int:
        """How many elements the tensor has."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Op:
    """One thing that a rank does in a step.

    A collective or message has `axes` (its group) and its payload in `nbytes`: the gathered size of
    an all-gather, the input of a reduce-scatter, the buffer of an all-reduce, the message. Any
    other op has the memory traffic in `nbytes` (each operand once) and, if it multiplies matrices,
    `flops`. `replicas` ranks of the grid compute the very same thing. An op that names a buffer
    both in `reads` and in `writes` works in place. `block` is the run of ops it belongs to,
    `attributes` what a kernel must know beyond its operands.
    """

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    block: str
    stream: str = COMPUTE
    axes: tuple[str, ...] = ()
    nbytes: int = 0
    flops: int = 0
    replicas: int = 1
    dtype: str = "bf16"
    attributes: Mapping[str, Any] = field(default_factory=lambda: NO_ATTRIBUTES, hash=False)

    @property
    def is_collective(self) -> bool:
        """Whether a group of ranks meets in this op."""
        return self.kind in COLLECTIVES

    @property
    def is_message(self) -> bool:
        """Whether this op sends to another pipeline stage, or receives from one.

        Its attributes are `tag`, the same on both sides, `peer`, how many stages further the other
        side is, and `link`, the earlier of the two stages in the ring of stages.
        """
        return self.kind in MESSAGES

    @property
    def communicates(self) -> bool:
        """Whether this op moves data between ranks."""
        return self.kind in COLLECTIVES or self.kind in MESSAGES

    @property
    def is_recomputed(self) -> bool:
        """Whether this op runs once more what the forward pass ran, whatever slot it is in."""
        return "recompute" in self.block.split(".")

    @property
    def group(self) -> tuple[str, ...]:
        """Whom it concerns, as `Grid.groups` understands it."""
        return (f"link{self.attributes['link']}",) if self.is_message else self.axes
