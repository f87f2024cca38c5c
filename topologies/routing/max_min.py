"""Max-min fair rates of flows that share links."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TOLERANCE = 1e-9


def max_min_rates(
    flow: NDArray[np.int64],
    link: NDArray[np.int64],
    capacity: NDArray[np.float64],
    flows: int,
    weight: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Rates at which no flow can gain without a slower or equal one losing.

    Entry e says that flow[e] crosses link[e], twice if it stands there twice, or weight[e] times;
    capacity is per link. Every flow crosses a link. Progressive filling, where each round freezes
    all links that are the tightest of each of their flows at once.

    Source: Bertsekas and Gallager, Data Networks, section 6.5.2.
    """
    rate = np.zeros(flows)
    left = capacity.astype(np.float64)
    while flow.size:
        users = np.bincount(link, weights=weight, minlength=len(left))
        share = np.divide(left, users, out=left.copy(), where=users > 0)
        tightest = np.full(flows, np.inf)
        np.minimum.at(tightest, flow, share[link])
        least = np.full(len(left), np.inf)
        np.minimum.at(least, link, tightest[flow])
        saturated = (users > 0) & (least >= share * (1 - _TOLERANCE))
        frozen = np.zeros(flows, dtype=bool)
        frozen[flow[saturated[link]]] = True
        rate[frozen] = tightest[frozen]
        gone = frozen[flow]
        taken = rate[flow[gone]] if weight is None else rate[flow[gone]] * weight[gone]
        used = np.bincount(link[gone], weights=taken, minlength=len(left))
        left = np.maximum(left - used, 0.0)
        flow, link = flow[~gone], link[~gone]
        weight = None if weight is None else weight[~gone]
    return rate
