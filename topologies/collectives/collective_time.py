"""How long a collective takes: as measured on this machine, or by the library's algorithms.

The payload is the gathered size of an all-gather, the input size of a reduce-scatter, the buffer
of an all-reduce, broadcast or all-to-all (what one rank holds before it), and a send's message.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from topologies.collectives import algorithms
from topologies.collectives.algorithms import DeviceGroup, Phase
from topologies.collectives.nccl_tuner import NONE, Shape, tuner_seconds
from topologies.errors import MachineError
from topologies.hardware.profile import MeasuredTable
from topologies.hardware.software import (
    ALGORITHMS,
    AUTO,
    CHEAPEST,
    Curve,
    Kind,
    Software,
    check_algorithm,
)
from topologies.machine import Machine
from topologies.routing.ring_packing import packed_rings
from topologies.routing.rings import Ring

__all__ = [
    "Kind",
    "Reached",
    "algorithm_seconds",
    "between_pairs",
    "collective_seconds",
    "group_of",
    "nominal_bytes_per_s",
    "picked",
    "with_algorithm",
]


def between_pairs(kind: str) -> bool:
    """Whether all members of a group send to each other in a collective, and not round a ring."""
    return kind == "all_to_all"


class Reached(NamedTuple):
    """Shares that kernels reach of the links `within` a node and of the NICs; None: the
    library's."""

    within: float | None = None
    across: float | None = None


BY_LIBRARY = Reached()


def collective_seconds(
    machine: Machine,
    kind: Kind,
    payload_bytes: float,
    ring: Ring,
    *,
    algorithm: str = "",
    reached: Reached = BY_LIBRARY,
) -> float:
    """Time of one collective: from the machine's measured table if it has one, else the model.

    An `algorithm` is in place of the library's own choice; all-to-alls may be by kernels of another
    rate (`reached`). An all-to-all needs the ring that was made for its pairs (`between_pairs`).
    """
    if ring.ranks == 1:
        return 0.0
    if machine.profile is not None and kind in machine.profile.collectives:
        table = machine.profile.collectives[kind]
        return measured_seconds(table, kind, payload_bytes, ring.ranks)
    times = algorithm_seconds(
        machine, kind, payload_bytes, ring, algorithm=algorithm, reached=reached
    )
    return times[picked(machine, kind, payload_bytes, ring, times)]


def algorithm_seconds(
    machine: Machine,
    kind: Kind,
    payload_bytes: float,
    ring: Ring,
    *,
    algorithm: str = "",
    reached: Reached = BY_LIBRARY,
) -> dict[str, float]:
    """Time by each algorithm that the library may take: the one asked for, the one it is set to, or
    all it has."""
    chosen = algorithm or machine.software.algorithm.of(kind)
    group = group_of(ring)
    names = _CHOICES[kind] if chosen in (AUTO, CHEAPEST) else (chosen,)
    software = machine.software
    if kind == "all_to_all":
        curve = _curve_of_pairs(machine, reached)
        times = {n: _on_curve(software, kind, n, payload_bytes, group, curve) for n in names}
    else:
        times = {name: _seconds(software, kind, name, payload_bytes, group) for name in names}
    found = {name: time for name, time in times.items() if time is not None}
    if not found:
        raise MachineError(_missing(machine, kind, chosen))
    return found


def picked(
    machine: Machine, kind: Kind, payload_bytes: float, ring: Ring, times: Mapping[str, float]
) -> str:
    """The algorithm that the library takes, of those with their times.

    That is its tuner's choice where it has one that we know (for an all-reduce; NCCL and RCCL have
    rings alone for the rest), else the cheapest. So a tuner's error costs what it costs: the
    algorithm that its constants favour takes the time that was measured.
    """
    tuned = machine.software.tuner != NONE and machine.software.algorithm.of(kind) == AUTO
    if tuned and kind == "broadcast" and "ring" in times:
        return "ring"
    if tuned and kind == "all_reduce":
        rate = nominal_bytes_per_s(machine, ring)
        shape = Shape(ring.ranks, ring.nodes, rate, _links_bytes_per_s(machine, ring))
        times = {
            name: expected
            for name, expected in tuner_seconds(
                machine.software.tuner, payload_bytes, shape
            ).items()
            if name in times
        } or times
    return min(times, key=lambda name: times[name])


def nominal_bytes_per_s(machine: Machine, ring: Ring) -> float:
    """The bus bandwidth that a library finds when it looks at the group's links and NICs.

    It knows neither of other groups on them nor of other jobs. A group is taken to have the first
    devices of its nodes, and as many NICs as devices there.
    """
    if ring.nodes > 1:
        local, node = ring.devices_per_node, machine.node
        return min(local, node.nics.count) * node.nics.bytes_per_s
    return _links_bytes_per_s(machine, ring)


def _links_bytes_per_s(machine: Machine, ring: Ring) -> float:
    """What the links inside a node have for the group's devices there; infinite for one device."""
    if ring.devices_per_node == 1:
        return math.inf
    (unit_rings,) = packed_rings(machine.node, (tuple(range(ring.devices_per_node)),))
    return unit_rings * machine.node.link_bytes_per_s


def with_algorithm(machine: Machine, kind: Kind, name: str) -> Machine:
    """The machine whose library serves a collective by the algorithm of that name."""
    check_algorithm(kind, name)
    algorithm = dataclasses.replace(machine.software.algorithm, **{kind: name})
    software = dataclasses.replace(machine.software, algorithm=algorithm)
    return dataclasses.replace(machine, software=software)


def group_of(ring: Ring) -> DeviceGroup:
    """The ring with its rate inside a node, where all groups of its axis are at work."""
    return DeviceGroup(ring, ring.bytes_per_s if ring.nodes == 1 else ring.within_bytes_per_s)


# What a library itself chooses from. A hierarchical collective is a library of its own.
_CHOICES: dict[Kind, tuple[str, ...]] = {
    "all_gather": ("ring", "recursive"),
    "reduce_scatter": ("ring", "recursive"),
    "all_reduce": ("ring", "tree", "nvls"),
    "broadcast": ("ring", "tree"),
    "all_to_all": ("pairwise",),
    "send_recv": ("direct",),
}


def _seconds(
    software: Software, kind: Kind, name: str, size: float, group: DeviceGroup
) -> float | None:
    """Time by one algorithm, or nothing where the library has no curve for it."""
    if kind == "all_reduce" and name in ("ring", "recursive", "hierarchical"):
        if name == "ring" and software.all_reduce is not None:
            own = software.of_pair(software.all_reduce, group.ring.pair_links)
            own = software.in_node(own, size, group.ring.pair_links)
            share = _links_share(software, kind, name, own)
            return algorithms.seconds(own, algorithms.ring(size, group, 2, share), group.ring)
        return _two_halves(software, name, size, group)
    return _on_curve(software, kind, name, size, group, _curve(software, kind, name, group))


def _on_curve(
    software: Software, kind: Kind, name: str, size: float, group: DeviceGroup, curve: Curve | None
) -> float | None:
    if curve is None:
        return None
    curve = software.in_node(curve, size, group.ring.pair_links)
    share = _links_share(software, kind, name, curve)
    return algorithms.seconds(curve, _phases(kind, name, size, group, share), group.ring)


def _curve_of_pairs(machine: Machine, reached: Reached) -> Curve | None:
    """The curve of all-to-alls: the library's own or, of what reaches other shares, with these;
    where there is none, that of all-gathers.

    Where nobody measured what a hop of all-to-alls takes it is a NIC's latency, so that ever more
    and ever smaller messages do not come for nothing.
    """
    own, others = machine.software.all_to_all, machine.software.all_gather
    curve = own or others
    if curve is None or (own is None and reached == BY_LIBRARY):
        return curve
    within, across = reached
    known = curve.hop_small_s or curve.hop_large_s
    return dataclasses.replace(
        curve,
        efficiency_within=curve.efficiency_within if within is None else within,
        efficiency_across=curve.efficiency_across if across is None else across,
        hop_small_s=curve.hop_small_s if known else machine.node.nics.latency_s or 0.0,
    )


def _two_halves(software: Software, name: str, size: float, group: DeviceGroup) -> float | None:
    """A reduce-scatter followed by an all-gather in one kernel, so that it launches once."""
    halves: tuple[Kind, Kind] = ("all_gather", "reduce_scatter")
    times, launches = [], []
    for kind in halves:
        curve = _curve(software, kind, name, group)
        if curve is None:
            return None
        share = _links_share(software, kind, name, curve)
        phases = _phases("all_gather", name, size, group, share)
        times.append(algorithms.seconds(curve, phases, group.ring))
        launches.append(curve.launch_s)
    return sum(times) - min(launches)


def _curve(software: Software, kind: Kind, name: str, group: DeviceGroup) -> Curve | None:
    """The curve of an algorithm; a collective without one of its own borrows its nearest kin's."""
    if name in ("recursive", "hierarchical") and kind != "all_to_all":
        staged: Curve | None = getattr(getattr(software, name), kind)
        ring: Curve | None = getattr(software, kind)
        return ring if staged is None and name == "hierarchical" else staged
    if name == "nvls":
        return software.nvls
    if kind == "all_reduce":
        return software.tree
    if kind == "broadcast":
        own = software.broadcast
        along = software.all_reduce or software.all_gather  # whose steps were measured with chunks
        borrowed = along if name == "ring" else software.tree
        return borrowed if own is None else own
    own_curve: Curve | None = getattr(software, kind)
    curve = software.all_gather if own_curve is None else own_curve
    if curve is None or name != "ring":
        return curve
    return software.of_pair(curve, group.ring.pair_links)


def _links_share(software: Software, kind: Kind, name: str, curve: Curve) -> float:
    """The share of the links' rate that an algorithm across nodes reaches inside them: its own.

    Where a library gathers in a node by recursive doubling, nobody measured its ring there, which
    reaches no less.
    """
    shares = [curve.efficiency_within]
    if name == "ring" and kind in ("all_gather", "reduce_scatter"):
        staged: Curve | None = getattr(software.recursive, kind)
        shares += [] if staged is None else [staged.efficiency_within]
    return max(shares)


def _phases(
    kind: Kind, name: str, size: float, group: DeviceGroup, links_share: float = 1.0
) -> Sequence[Phase]:
    if name == "tree":
        passes = 1 if kind == "broadcast" else 2
        return algorithms.tree(size, group, passes, links_share)
    if name == "nvls":
        return algorithms.nvls(size, group, links_share)
    if name == "ring":
        along = algorithms.chain if kind == "broadcast" else algorithms.ring
        return along(size, group, links_share=links_share)
    if name == "pairwise":
        return algorithms.pairwise(size, group, links_share)
    if kind == "all_to_all":
        return algorithms.two_steps(size, group)
    by_name = {
        "recursive": algorithms.recursive,
        "hierarchical": algorithms.hierarchical,
        "direct": algorithms.direct,
    }
    return by_name[name](size, group)


def _missing(machine: Machine, kind: Kind, chosen: str) -> str:
    wants = {"recursive": "recursive.", "hierarchical": "hierarchical."}.get(chosen, "") + kind
    if chosen in ("tree", "nvls"):
        wants = chosen
    by = "" if chosen in (AUTO, CHEAPEST) else f" by {chosen}"
    others = ", ".join(name for name in ALGORITHMS[kind] if name != chosen)
    return (
        f"{machine.name} has neither software.{wants} nor a measured table of {kind}{by}; "
        f"measure it with simgpt calibrate, or try software.{kind} = {others}"
    )


def measured_seconds(table: MeasuredTable, kind: str, payload_bytes: float, ranks: int) -> float:
    """Interpolates a table of (ranks, bytes, seconds) log-log in bytes for this group size.

    Below the smallest measured size its time holds; above the largest its bandwidth does.
    """
    points = sorted((row[1], row[2]) for row in table.rows if row[0] == ranks)
    if not points:
        sizes = ", ".join(f"{size:g}" for size in sorted({row[0] for row in table.rows}))
        raise MachineError(f"{kind} was not measured in groups of {ranks}, only of {sizes}")
    if payload_bytes <= points[0][0]:
        return points[0][1]
    if payload_bytes >= points[-1][0]:
        return points[-1][1] * payload_bytes / points[-1][0]
    above = bisect_left(points, (payload_bytes, -math.inf))
    (b0, t0), (b1, t1) = points[above - 1], points[above]
    weight = math.log(payload_bytes / b0) / math.log(b1 / b0)
    return t0 * math.exp(weight * math.log(t1 / t0))
