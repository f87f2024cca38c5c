"""The block of ops that run once more within a backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from workload.lowering.builder import Builder
from workload.op import RECOMPUTE


@contextmanager
def in_recomputation(b: Builder) -> Iterator[None]:
    """Ops are of a block of their own within the backward pass."""
    block, b.block = b.block, b.block._replace(phase=RECOMPUTE)
    yield
    b.block = block
