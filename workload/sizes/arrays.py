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


def coded(columns: Sequence[Counts]) -> Counts:
    """One number for each row, in the order of the rows and equal where these are.

    >>> coded([np.array([8, 2, 8]), np.array([1, 5, 1])])
    array([2, 1, 2])
    """
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        code = code * len(values) + place
    return code
