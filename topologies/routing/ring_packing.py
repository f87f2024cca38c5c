"""How many rings fit on the links inside one node, when all its groups run at once.

Every link of multiplicity c is c unit arcs in each direction, and a ring uses one arc per hop;
libraries build their rings (channels) the same way. A group takes rings one by one, always the
one that leaves the scarcest links free; groups take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, permutations
from math import gcd

import numpy as np
from numpy.typing import NDArray

from topologies.hardware.node import Node
from topologies.routing.max_min import max_min_rates
from topologies.session import session_cached

_EXHAUSTIVE = 8  # members up to which every order is tried: 5,040 orders
_ATTEMPTS = 64  # orders tried before a ring is given up, when its hops share a routed link

Path = tuple[int, ...]
Paths = dict[tuple[int, int], list[Path]]


@session_cached(4096)
def packed_rings(node: Node, groups: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
    """Unit rings that each group of devices gets, all groups together; one ring is one link wide.

    A group that finds no free ring shares one with the others: 1 / groups. Groups on a switch
    share each device's links to it by max-min fairness, so they get parts of rings as well.
    Not modelled: the best packing; greedy turns reach it on the nodes that we know.
    """
    if node.links.switch:
        return _switched(node.links.switch, groups)
    free = _arcs(node)
    paths = shortest_paths(node)
    orders = [_shortest_orders(group, paths) for group in groups]
    rings = [0] * len(groups)
    waiting = list(range(len(groups)))
    while waiting:
        waiting = [i for i in waiting if _take_ring(orders[i], paths, free)]
        for i in waiting:
            rings[i] += 1
    return tuple(float(count) if count else 1.0 / len(groups) for count in rings)


def _switched(links: int, groups: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
    flow = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    device = np.concatenate([np.array(group) for group in groups])
    capacity = np.full(int(device.max()) + 1, float(links))
    return tuple(max_min_rates(flow, device, capacity, len(groups)).tolist())


def _arcs(node: Node) -> NDArray[np.int64]:
    free = np.zeros((node.devices, node.devices), dtype=np.int64)
    for (a, b), count in node.link_counts().items():
        free[a, b] = free[b, a] = count
    return free


@session_cached(64)
def shortest_paths(node: Node) -> Paths:
    """All shortest paths between any two devices; a pair with a link has that link alone."""
    near: dict[int, list[int]] = {device: [] for device in range(node.devices)}
    for a, b in node.link_counts():
        near[a].append(b)
        near[b].append(a)
    paths: Paths = {}
    for start in near:
        layer: list[Path] = [(start,)]
        seen = {start}
        while layer:
            layer = [(*path, n) for path in layer for n in sorted(near[path[-1]]) if n not in seen]
            seen.update(path[-1] for path in layer)
            for path in layer:
                paths.setdefault((start, path[-1]), []).append(path)
    return paths


def _shortest_orders(group: tuple[int, ...], paths: Paths) -> NDArray[np.int64]:
    """The orders of a ring over the group that need the fewest arcs: detours only where needed."""
    orders = np.array(list(_orders(len(group))))
    devices = np.array(group)[orders]
    size = 1 + max(group)
    length = np.full((size, size), np.inf)
    for a in group:
        for b in group:
            if (a, b) in paths:
                length[a, b] = len(paths[a, b][0]) - 1
    arcs = length[devices, np.roll(devices, -1, axis=1)].sum(axis=1)
    return np.asarray(devices[(arcs == arcs.min()) & np.isfinite(arcs)])


@session_cached(16)
def _orders(members: int) -> tuple[tuple[int, ...], ...]:
    """Cyclic orders to try: all of them for small groups, else the even strides."""
    if members <= _EXHAUSTIVE:
        return tuple((0, *rest) for rest in permutations(range(1, members)))
    strides = [s for s in range(1, members) if gcd(s, members) == 1]
    return tuple(tuple(i * s % members for i in range(members)) for s in strides)


def _take_ring(orders: NDArray[np.int64], paths: Paths, free: NDArray[np.int64]) -> bool:
    """Takes one ring's arcs out of `free`; False when none is left."""
    if not len(orders):
        return False
    width = _hop_widths(orders, paths, free)
    widths = np.sort(width[orders, np.roll(orders, -1, axis=1)], axis=1)
    best_first = np.lexsort(-widths.T[::-1])
    for index in best_first[:_ATTEMPTS]:
        if widths[index, 0] < 1:
            return False
        used = free.copy()
        for a, b in _arcs_of(orders[index], paths, free):
            used[a, b] -= 1
        if (used >= 0).all():
            free[:] = used
            return True
    return False


def _hop_widths(
    orders: NDArray[np.int64], paths: Paths, free: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Free arcs from one member to another; over the widest shortest path where no link joins."""
    width = np.zeros_like(free)
    members = orders[0].tolist()
    for a in members:
        for b in members:
            if (a, b) in paths and a != b:
                width[a, b] = max(_width(path, free) for path in paths[a, b])
    return width


def _width(path: Path, free: NDArray[np.int64]) -> int:
    return int(min(free[a, b] for a, b in pairwise(path)))


def _arcs_of(
    order: NDArray[np.int64], paths: Paths, free: NDArray[np.int64]
) -> Iterator[tuple[int, int]]:
    ring = [*order.tolist(), int(order[0])]
    for hop in pairwise(ring):
        widest = max(paths[hop], key=lambda path: _width(path, free))
        yield from pairwise(widest)
