"""Ops of a program that are equal in kind and sizes: what is worked out for one holds for all.

A step of some thousand ops has a few hundred different ones, since layers and micro-batches repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from workload.op import Op
from workload.sizes.arrays import Indices


class EqualOps(NamedTuple):
    """The first op of each sort, (sorts,), and the sort of each op, (ops,)."""

    first: Indices
    sort: Indices


def equal_ops(ops: Sequence[Op]) -> EqualOps:
    """Ops are of one sort if they differ at most in names, operands, layer and micro-batch.

    Ops of no layer are of a sort each, since their sizes may grow with the layers.
    """
    known: dict[object, int] = {}
    first: list[int] = []
    sort = np.empty(len(ops), dtype=np.int64)
    for at, op in enumerate(ops):
        number = sort[at] = known.setdefault(_key(op) if op.part.is_layer else at, len(known))
        if number == len(first):
            first.append(at)
    return EqualOps(np.array(first, dtype=np.int64), sort)


def _key(op: Op) -> object:
    attributes = tuple(op.attributes.items())
    sizes = op.nbytes, op.flops, op.replicas, op.launches
    return op.kind, op.stream, op.axes, op.dtype, op.is_beyond_model, sizes, attributes
