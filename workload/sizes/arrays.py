"""Arrays of whole numbers and truth values, by what they say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ticks = NDArray[np.int64]  # of simulated time (`simulator/engine/ticks.py`)
Bytes = NDArray[np.int64]
Indices = NDArray[np.int64]  # of ranks, groups, ops, rows or entries
Counts = NDArray[np.int64]  # of layers, micro-batches, ranks; sizes of a plan
Values = NDArray[np.int64]  # ticks, bytes or micro-joules, whichever is asked for
Flags = NDArray[np.bool_]
Parts = tuple[list[int], Indices]  # a row of each part, and for each row its part
MIX = np.int64(0x9E3779B97F4A7C15 - 2**64)


def distinct(columns: Sequence[Indices]) -> Parts:
    """The first rows of all different ones, and for each row which of them it is."""
    varied = [column for column in columns if not (column == column[0]).all()]
    if not varied:
        return [0], np.zeros(len(columns[0]), dtype=np.int64)
    table = np.stack(varied)
    marks = np.zeros(table.shape[1], dtype=np.int64)
    for column in table:
        marks = (marks ^ column) * MIX
        marks ^= marks >> 29
    _, first, which = np.unique(marks, return_index=True, return_inverse=True)
    if not (table == table[:, first[which]]).all():  # two rows with the same mark
        _, first, which = np.unique(table, axis=1, return_index=True, return_inverse=True)
    return first.tolist(), np.asarray(which.ravel(), dtype=np.int64)
