"""The collective library: the measured curves that turn a ring's rate into seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from topologies.keys import Key


@dataclass(frozen=True)
class Curve:
    """A ring all-gather or reduce-scatter; `collectives.py` has the formula.

    `efficiency_across` is the rate reached over the nominal rate of the node's NICs,
    `efficiency_within` that over the rings that the links of one node carry.
    """

    launch_s: Annotated[float, Key("launch", "s")]
    hop_small_s: Annotated[float, Key("hop_small", "s")]
    hop_large_s: Annotated[float, Key("hop_large", "s")]
    chunk_pivot_bytes: Annotated[float, Key("chunk_pivot", "bytes")]
    chunk_width: Annotated[float, Key("chunk_width")]
    overlap: Annotated[float, Key("overlap")]
    efficiency_across: Annotated[float, Key("efficiency_across")]
    efficiency_within: Annotated[float, Key("efficiency_within")]


@dataclass(frozen=True)
class Tree:
    """A tree all-reduce: launch, latency of one level and share of the ring's nominal rate."""

    launch_s: Annotated[float, Key("launch", "s")]
    hop_s: Annotated[float, Key("hop", "s")]
    efficiency: Annotated[float, Key("efficiency")]


@dataclass(frozen=True)
class Software:
    """A collective library as measured on its machine; a curve nobody measured is absent.

    `compute_share` is the share of an overlapped collective's time that it takes from its device's
    compute: 0 where it has an engine of its own, 1 where it needs the very cores that compute.
    """

    name: Annotated[str, Key("name")]
    all_gather: Annotated[Curve | None, Key("all_gather")] = None
    reduce_scatter: Annotated[Curve | None, Key("reduce_scatter")] = None
    tree: Annotated[Tree | None, Key("tree")] = None
    compute_share: Annotated[float, Key("compute_share", zero=True)] = 0.0
