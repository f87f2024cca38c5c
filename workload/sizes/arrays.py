"""Arrays of whole numbers and truth values, by what they say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ticks = NDArray[np.int64]  # of simulated time (`simulator/engine/ticks.py`)
Bytes = NDArray[np.int64]
Indices = NDArray[np.int64]  # of ranks, groups, ops, rows or entries
Counts = NDArray[np.int64]  # of layers, micro-batches, ranks; sizes of a plan
Values = NDArray[np.int64]  # ticks, bytes or micro-joules, whichever is asked for
Flags = NDArray[np.bool_]
