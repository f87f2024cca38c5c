"""Arrays of whole numbers: indices of nodes, devices, ranks, groups and links, and their counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
