"""Which algorithm a library's tuner picks for an all-reduce, by the library's own constants.

NCCL and RCCL estimate latency + size / bandwidth for every algorithm in each of three protocols
and take the least. Their constants are guesses made for other machines; measured times may differ
by far, so the algorithm picked need not be the fastest one. `tuners.toml` holds the constants.

Source: NVIDIA/nccl and ROCm/rccl, src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime.
Not modelled: caps of a channel, which bind on none of the machines that we ship; CollNet and PAT;
that several operations in one launch share latencies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from topologies.errors import MachineError
from topologies.files.reading import shipped_toml
from topologies.files.units import quantity
from topologies.records import record
from topologies.session import session_cached

PROTOCOLS = ("LL", "LL128", "Simple")
TUNED = ("ring", "tree", "nvls")
NONE = "none"  # a library without a tuner that we know
_SIMPLE = PROTOCOLS.index("Simple")
_SMALLEST_LOG2 = 6  # corrections begin at 64 bytes
_PLATEAU_BYTES = 64  # by rank and channel: from here on, NCCL's ring has its plateau

Triple = tuple[float, float, float]


@record(slots=False)
class Constants:
    """What a tuner assumes of one algorithm on one, two or more nodes, by protocol.

    `ratio` is the share of the nominal bus bandwidth, `cap` its upper bound, `links` the share of
    the links' bandwidth inside a node, which is another bound across nodes (0 for none), and
    `correction` the share of the bandwidth by power of two of the size, from 64 bytes on. A `step`
    goes to the next device of a node and takes at least `overhead` in a ring across nodes; a `hop`
    goes to another node, and takes `hop_alone` where the group has one rank in each.
    """

    base_s: Triple
    step_s: Triple
    hop_s: Triple
    hop_alone_s: Triple
    overhead_s: Triple
    ratio: Triple
    links: Triple
    cap_bytes_per_s: Triple
    correction: tuple[tuple[float, ...], ...]
    plateau: float


@record(slots=False)
class Shape:
    """The group as a tuner sees it: the bus bandwidth is what its links and NICs have nominally,
    that of the links what it has inside a node."""

    ranks: int
    nodes: int
    bytes_per_s: float
    links_bytes_per_s: float = math.inf


def tuner_seconds(tuner: str, size_bytes: float, shape: Shape) -> dict[str, float]:
    """What the tuner of that name expects of each algorithm, with its best protocol."""
    tables = _tuner(tuner)
    expected: dict[str, float] = {}
    for name in (name for name in TUNED if name in tables):
        constants = _constants(tuner, name, min(shape.nodes, 3))
        channels = float(tables["channels"]["value"])
        times = [
            _seconds(name, constants, protocol, size_bytes, shape, channels)
            for protocol in range(len(PROTOCOLS))
            if constants.ratio[protocol]
        ]
        expected[name] = min(times)
    return expected


def _seconds(
    name: str, c: Constants, protocol: int, size: float, shape: Shape, channels: float
) -> float:
    p = shape.ranks
    inside = shape.links_bytes_per_s * c.links[protocol] if c.links[protocol] else math.inf
    bus = min(shape.bytes_per_s * c.ratio[protocol], inside, c.cap_bytes_per_s[protocol])
    bus *= _correction(c.correction[protocol], size)
    per_bus = {"ring": p / (2 * (p - 1)), "tree": 0.5, "nvls": 5 / 6}[name]
    latency_s = c.base_s[protocol] + _path_seconds(name, c, protocol, shape)
    flat = name == "ring" and protocol == _SIMPLE and shape.nodes > 1
    if flat and size >= _PLATEAU_BYTES * channels * p:
        latency_s *= c.plateau
    return latency_s + size / (bus * per_bus)


def _path_seconds(name: str, c: Constants, protocol: int, shape: Shape) -> float:
    """The steps and hops that an element takes, one after the other."""
    p, nodes = shape.ranks, shape.nodes
    step_s, levels = c.step_s[protocol], int(math.log2(nodes))
    hop_s = (c.hop_alone_s if p == nodes else c.hop_s)[protocol]
    if name == "nvls":
        return step_s + 2 * levels * hop_s
    if name == "tree":
        return 2 * ((p // nodes - 1) * step_s + levels * hop_s)
    hops = 2 * nodes if nodes > 1 else 0
    if nodes > 1:
        step_s = max(step_s, c.overhead_s[protocol])
    return (2 * (p - 1) - hops) * step_s + hops * hop_s


def _correction(shares: tuple[float, ...], size: float) -> float:
    power = max(0, int(math.log2(max(size, 1.0))) - _SMALLEST_LOG2)
    return shares[min(power, len(shares) - 1)]


def check_tuner(name: str) -> None:
    """Refuses the name of a tuner that is not known."""
    if name == NONE:
        return
    known = [NONE, *_tuners()]
    if name not in known:
        raise MachineError(f'software.tuner = "{name}" is not known; try {", ".join(known)}')


@session_cached(128)
def _constants(tuner: str, name: str, nodes: int) -> Constants:
    table = _tuner(tuner)[name]
    own = {**table, **table.get({1: "one", 2: "two", 3: "more"}[nodes], {})}

    def times(key: str, instead: str = "") -> Triple:
        texts = own.get(key, own.get(instead, ["0 s"] * 3))
        return _triple(quantity(text, "s") for text in texts)

    caps = own.get("cap", [""] * 3)
    return Constants(
        base_s=times("base"),
        step_s=times("step"),
        hop_s=times("hop"),
        hop_alone_s=times("hop_alone", "hop"),
        overhead_s=times("overhead"),
        ratio=_triple(own["ratio"]),
        links=_triple(own.get("links", [0] * 3)),
        cap_bytes_per_s=_triple(quantity(cap, "bytes/s") if cap else math.inf for cap in caps),
        correction=tuple(tuple(map(float, shares)) for shares in own.get("correction", [[1]] * 3)),
        plateau=float(own.get("plateau", 1)),
    )


def _triple(values: Any) -> Triple:
    first, second, third = map(float, values)
    return first, second, third


@cache
def _tuners() -> dict[str, dict[str, Any]]:
    return shipped_toml("topologies", "tuners.toml")


@session_cached(16)
def _tuner(name: str) -> dict[str, Any]:
    own = _tuners()[name]
    return _merged(_tuner(own["like"]), own) if "like" in own else own


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(old.get(key), dict)
        result[key] = _merged(old[key], value) if both else value
    return result
