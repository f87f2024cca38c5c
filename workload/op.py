"""Ops and buffers: the words a program is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

COMPUTE = "compute"
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
ITEM_BYTES = {"bf16": 2, "fp32": 4, "fp64": 8, "int64": 8}
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

    A collective has `axes` (its group) and its payload in `nbytes`: the gathered size of an
    all-gather, the input of a reduce-scatter, the buffer of an all-reduce. Any other op has the
    memory traffic in `nbytes` (each operand once) and, if it multiplies matrices, `flops`.
    `replicas` ranks of the grid compute the very same thing. An op that names a buffer both in
    `reads` and in `writes` works in place. `block` is the run of ops it belongs to, `attributes`
    what a kernel must know beyond its operands.
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
        """Whether ranks meet in this op."""
        return self.kind in COLLECTIVES
