"""The collective library: measured curves that turn an algorithm's phases into seconds."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Annotated, Literal

from topologies.collectives.nccl_tuner import NONE, check_tuner
from topologies.errors import MachineError
from topologies.files.keys import Key
from topologies.records import record

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send_recv"]


@record(slots=False)
class Stall:
    """Latency that each hop gains for chunks from one size up to below another.

    Such windows are in the measured tables wherever a message protocol is chosen badly.
    """

    chunk_from_bytes: Annotated[float, Key("chunk_from", "bytes")]
    chunk_below_bytes: Annotated[float, Key("chunk_below", "bytes")]
    hop_s: Annotated[float, Key("hop", "s")]


@record(slots=False)
class Curve:
    """One algorithm of the library as measured; `algorithms.py` has the formula.

    A hop from node to node takes from `hop_small` to `hop_large`, by its chunk, and a step between
    devices of a node likewise (`step_small`, `step_large`). The efficiencies are the rate reached
    over the nominal one of the node's NICs, and over that of the links in one node: there for the
    first `within_to` bytes of a message, where it was measured with small ones alone.
    """

    launch_s: Annotated[float, Key("launch", "s")]
    efficiency_across: Annotated[float, Key("efficiency_across", share=True)]
    efficiency_within: Annotated[float, Key("efficiency_within", share=True)]
    within_to_bytes: Annotated[float, Key("within_to", "bytes")] = math.inf
    hop_small_s: Annotated[float, Key("hop_small", "s")] = 0.0
    hop_large_s: Annotated[float | None, Key("hop_large", "s")] = None
    step_small_s: Annotated[float, Key("step_small", "s")] = 0.0
    step_large_s: Annotated[float | None, Key("step_large", "s")] = None
    chunk_pivot_bytes: Annotated[float, Key("chunk_pivot", "bytes")] = 65536.0
    chunk_width: Annotated[float, Key("chunk_width")] = 1.0
    overlap: Annotated[float, Key("overlap")] = 1.0
    stall: Annotated[Stall | None, Key("stall")] = None


@record(slots=False)
class Staged:
    """The curves of an algorithm that serves an all-gather and a reduce-scatter alike."""

    all_gather: Annotated[Curve | None, Key("all_gather")] = None
    reduce_scatter: Annotated[Curve | None, Key("reduce_scatter")] = None


AUTO, CHEAPEST = "auto", "cheapest"
ALGORITHMS: dict[Kind, tuple[str, ...]] = {
    "all_gather": (AUTO, CHEAPEST, "ring", "recursive", "hierarchical"),
    "reduce_scatter": (AUTO, CHEAPEST, "ring", "recursive", "hierarchical"),
    "all_reduce": (AUTO, CHEAPEST, "ring", "tree", "recursive", "hierarchical", "nvls"),
    "broadcast": (AUTO, CHEAPEST, "ring", "tree"),
    "all_to_all": (AUTO, CHEAPEST, "pairwise", "hierarchical"),
    "send_recv": (AUTO, CHEAPEST, "direct"),
}


@record(slots=False)
class Algorithms:
    """Which algorithm serves each collective.

    `auto` is what the library's tuner picks, or the cheapest where no tuner is known; `cheapest` is
    the cheapest that the library has, whatever its tuner says.
    """

    all_gather: Annotated[str, Key("all_gather")] = "auto"
    reduce_scatter: Annotated[str, Key("reduce_scatter")] = "auto"
    all_reduce: Annotated[str, Key("all_reduce")] = "auto"
    broadcast: Annotated[str, Key("broadcast")] = "auto"
    all_to_all: Annotated[str, Key("all_to_all")] = "auto"
    send_recv: Annotated[str, Key("send_recv")] = "auto"

    def __post_init__(self) -> None:
        """Refuses an algorithm that does not exist for its collective."""
        for field in fields(self):
            check_algorithm(field.name, getattr(self, field.name))

    def of(self, kind: Kind) -> str:
        """The algorithm of one collective."""
        return str(getattr(self, kind))


def check_algorithm(kind: str, name: str) -> None:
    """Refuses the name of an algorithm that the collective does not know."""
    known = ALGORITHMS[kind]  # type: ignore[index]
    if name not in known:
        raise MachineError(
            f'software.{kind} = "{name}" is not an algorithm of {kind}; try {", ".join(known)}'
        )


@record(slots=False)
class Software:
    """A collective library as measured on its machine; a curve nobody measured is absent.

    `all_gather` and `reduce_scatter` are rings; `all_reduce` is one too, where it was measured by
    itself. `tuner` names the constants by which the library picks an all-reduce's algorithm, or
    `none`. `pair_share` has what rings of two devices in a node reach of the links between them:
    rows of [links, share], 0 links for a pair that none joins; others reach `efficiency_within`.
    `compute_share` is the share of an overlapped collective's time that it takes from its
    device's compute: 0 where it has an engine of its own, near 1 where it needs the cores that
    compute.
    """

    name: Annotated[str, Key("name")]
    all_gather: Annotated[Curve | None, Key("all_gather")] = None
    reduce_scatter: Annotated[Curve | None, Key("reduce_scatter")] = None
    all_reduce: Annotated[Curve | None, Key("all_reduce")] = None
    tree: Annotated[Curve | None, Key("tree")] = None
    nvls: Annotated[Curve | None, Key("nvls")] = None
    broadcast: Annotated[Curve | None, Key("broadcast")] = None
    all_to_all: Annotated[Curve | None, Key("all_to_all")] = None
    send_recv: Annotated[Curve | None, Key("send_recv")] = None
    hierarchical: Annotated[Staged, Key("hierarchical")] = Staged()
    recursive: Annotated[Staged, Key("recursive")] = Staged()
    algorithm: Annotated[Algorithms, Key("algorithm")] = Algorithms()
    tuner: Annotated[str, Key("tuner")] = NONE
    compute_share: Annotated[float, Key("compute_share", zero=True, share=True)] = 0.0
    pair_share: Annotated[tuple[tuple[float, float], ...], Key("pair_share")] = ()

    def __post_init__(self) -> None:
        """Refuses a tuner that is not known, and shares that are none."""
        check_tuner(self.tuner)
        counts = [links for links, _ in self.pair_share]
        whole = all(links >= 0 and links == int(links) for links in counts)
        if (
            not whole
            or len({*counts}) < len(counts)
            or any(not 0 < s <= 1 for _, s in self.pair_share)
        ):
            raise MachineError(
                f"software.pair_share = {[list(row) for row in self.pair_share]} must be rows of "
                "[links, share]: each count of links once, and shares above 0 and at most 1"
            )

    def in_node(self, curve: Curve, size_bytes: float, pair_links: int = -1) -> Curve:
        """The curve for a message in a node, what is beyond `within_to` as rings of all-gathers
        go: libraries send large messages by another protocol than small ones."""
        first = min(size_bytes, curve.within_to_bytes)
        if first == size_bytes or self.all_gather is None:
            return curve
        longest = first / curve.efficiency_within
        rings = self.of_pair(self.all_gather, pair_links)
        rest = (size_bytes - first) / rings.efficiency_within
        return replace(curve, efficiency_within=size_bytes / (longest + rest))

    def of_pair(self, curve: Curve, links: int) -> Curve:
        """The curve for a ring of two devices in a node that so many links join."""
        share = dict(self.pair_share).get(float(links))
        return curve if share is None else replace(curve, efficiency_within=share)


PARTS = (Stall, Curve, Staged, Algorithms, Software)  # each after the parts that it is made of
