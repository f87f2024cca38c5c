"""Pictures of a machine: one node with its links and NICs, and the switches that join the nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topologies.errors import MachineError
from topologies.files.units import format_quantity
from topologies.files.writing import figure_bytes, write_whole
from topologies.hardware.interconnect import Dragonfly, FatTree
from topologies.machine import Machine
from topologies.routing.graph import node_graph

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]
MOST_SWITCHES = 20_000

# Colours that the colour-blind can tell apart. Source: Okabe and Ito, Color Universal Design.
DEVICE, NIC, SWITCH, FAR, QUIET = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#9A9A9A"


def draw_node(machine: Machine, path: str | Path) -> None:
    """Draws a node into a file."""
    _save(node_figure(machine), path)


def node_figure(machine: Machine) -> Figure:
    """A node: devices on a circle, links as wide as their number, NICs around them."""
    figure, axes = _canvas(1, (7.0, 7.4))
    _node(axes[0], machine)
    return figure


def check_switches(machine: Machine) -> None:
    """Refuse a machine with more switches than a picture has room for."""
    switches = machine.interconnect.switches
    if switches > MOST_SWITCHES:
        raise MachineError(f"{machine.name} has too many switches to draw, {switches:,}")


def draw_interconnect(machine: Machine, path: str | Path) -> None:
    """Draws the interconnect into a file."""
    _save(interconnect_figure(machine), path)


def interconnect_figure(machine: Machine) -> Figure:
    """The dragonfly and one of its groups, or the fat tree."""
    fabric = machine.interconnect
    check_switches(machine)
    if isinstance(fabric, Dragonfly):
        figure, axes = _canvas(2, (14.0, 8.0))
        _groups(axes[0], machine, fabric)
        _switches(axes[1], machine, fabric)
    elif isinstance(fabric, FatTree):
        figure, axes = _canvas(1, (12.0, 6.0))
        _fat_tree(axes[0], machine, fabric)
    else:
        raise MachineError(f"{machine.name} is a single node without an interconnect to draw")
    return figure


def _canvas(parts: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.02, right=0.98, bottom=0.1, top=0.9, wspace=0.04)
    axes = [figure.add_subplot(1, parts, i + 1) for i in range(parts)]
    for each in axes:
        each.set_aspect("equal")
        each.axis("off")
    return figure, axes


def _save(figure: Figure, path: str | Path) -> None:
    try:
        content = figure_bytes(figure, Path(path).suffix[1:], dpi=150)
    except ValueError as error:
        raise MachineError(f"cannot draw the figure {path}: {error}") from None
    write_whole(path, content)


def _circle(count: int, radius: float = 1.0, turn: float = 0.0) -> list[Point]:
    angles = [math.pi / 2 - 2 * math.pi * (i + turn) / count for i in range(count)]
    return [(radius * math.cos(a), radius * math.sin(a)) for a in angles]


def _line(axes: Axes, a: Point, b: Point, **style: Any) -> None:
    axes.plot([a[0], b[0]], [a[1], b[1]], solid_capstyle="round", **style)


def _box(axes: Axes, at: Point, text: str, colour: str, size: float = 11) -> None:
    style = {"boxstyle": "round,pad=0.45", "facecolor": colour, "edgecolor": "white"}
    ink = "black" if colour == NIC else "white"
    axes.text(*at, text, ha="center", va="center", color=ink, fontsize=size, bbox=style,
              fontweight="bold", zorder=3)  # fmt: skip


def _width(links: int) -> float:
    """Line width: four links are as wide as reads well, more only a little wider."""
    return float(1.4 * links**0.9 if links <= 4 else 4.4 + links**0.5)


def _legend(axes: Axes, entries: Sequence[tuple[str, dict[str, Any]]], title: str) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **style) for label, style in entries]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), frameon=False,
                ncols=min(len(handles), 4), title=title, fontsize=9)  # fmt: skip


def _node(axes: Axes, machine: Machine) -> None:
    node, graph = machine.node, node_graph(machine)
    ring = _ring_order(machine)
    places = dict(zip(ring, _circle(len(ring), turn=0.5), strict=True))
    spots: dict[tuple[str, int], Point] = {("device", d): at for d, at in places.items()}
    spots[("switch", 0)] = (0.0, 0.0)
    for nic in range(node.nics.count):
        own = [places[d] for d, k in enumerate(node.nics.of_device) if k == nic]
        x, y = (sum(values) / len(own) for values in zip(*own, strict=True)) if own else (0, 0)
        length = math.hypot(x, y) or 1.0
        spots[("nic", nic)] = (1.5 * x / length, 1.5 * y / length)
    multiples = set()
    for a, b, about in graph.edges(data=True):
        if about["kind"] == "link":
            _line(axes, spots[a], spots[b], color=DEVICE, lw=_width(about["links"]), alpha=0.6)
            multiples.add(about["links"])
        elif about["kind"] == "nic":
            _line(axes, spots[a], spots[b], color=NIC, lw=2, ls="--")
    for (kind, i), about in graph.nodes.items():
        colour = {"device": DEVICE, "nic": NIC, "switch": SWITCH}.get(kind)
        if colour:
            word = {"device": str(i), "nic": f"NIC {i}", "switch": "switch"}[about["kind"]]
            _box(axes, spots[(kind, i)], word, colour)
    _node_legend(axes, machine, sorted(multiples, reverse=True))
    axes.set_title(f"One node of {machine.name}: {node.devices} × {machine.device.name}")
    reach = 1.75 if node.nics.count else 1.25
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)


def _ring_order(machine: Machine) -> list[int]:
    """Devices so that linked ones stand side by side: each time the one with the most links."""
    counts = machine.node.link_counts()
    order, waiting = [0], list(range(1, machine.node.devices))
    while waiting:
        last = order[-1]
        nearest = max(waiting, key=lambda d: (counts.get((min(d, last), max(d, last)), 0), -d))
        order.append(nearest)
        waiting.remove(nearest)
    return order


def _node_legend(axes: Axes, machine: Machine, multiples: list[int]) -> None:
    entries: list[tuple[str, dict[str, Any]]] = []
    for links in multiples:
        rate = format_quantity(links * machine.node.link_bytes_per_s, "bytes/s")
        words = f"{links} link{'s' if links > 1 else ''}: {rate}"
        entries.append((words, {"color": DEVICE, "lw": _width(links), "alpha": 0.6}))
    if machine.node.nics.count:
        rate = format_quantity(machine.node.nics.bytes_per_s, "bytes/s")
        entries.append((f"NIC: {rate}", {"color": NIC, "lw": 2, "ls": "--"}))
    _legend(axes, entries, "per direction")


def _groups(axes: Axes, machine: Machine, fabric: Dragonfly) -> None:
    """All groups on a circle, with every bundle; group 0's stand out."""
    places = _circle(fabric.groups)
    for a in range(fabric.groups):
        for b in range(a):
            own = b == 0
            style = {"color": FAR, "lw": 1.0, "alpha": 0.9, "zorder": 2} if own else {
                "color": QUIET, "lw": 0.25, "alpha": 0.35, "zorder": 1}  # fmt: skip
            _line(axes, places[a], places[b], **style)
    sizes = [fabric.nodes_per_group] * (fabric.groups - 1)
    sizes.append(fabric.nodes - sum(sizes))
    for group, (at, nodes) in enumerate(zip(places, sizes, strict=True)):
        axes.plot(*at, "o", ms=7, color=FAR if group == 0 else SWITCH, zorder=3)
        angle = math.degrees(math.atan2(at[1], at[0]))
        text = f"{group}: {nodes}" if fabric.groups <= 32 else str(group)
        flip = abs(angle) > 90
        axes.text(1.06 * at[0], 1.06 * at[1], text, fontsize=8, rotation=angle + 180 * flip,
                  rotation_mode="anchor", ha="right" if flip else "left", va="center")  # fmt: skip
    bundle = format_quantity(fabric.bundle_bytes_per_s, "bytes/s")
    per_group = " (number: nodes)" if fabric.groups <= 32 else f" of {fabric.nodes_per_group} nodes"
    axes.set_title(f"{machine.name}: {fabric.groups} groups{per_group}, taper {fabric.taper:.0%}")
    words = f"{fabric.global_links} links, {bundle} per direction"
    _legend(axes, [
        (f"from group 0: {words}", {"color": FAR, "lw": 1.5}),
        ("the same between any other two", {"color": QUIET, "lw": 1.5}),
    ], "global links")  # fmt: skip
    axes.set_xlim(-1.3, 1.3)
    axes.set_ylim(-1.3, 1.3)


def _switches(axes: Axes, machine: Machine, fabric: Dragonfly) -> None:
    """The switches of one group: all to all, each with its nodes' NICs and its global links."""
    places = _circle(fabric.switches_per_group)
    for a, here in enumerate(places):
        for there in places[:a]:
            _line(axes, here, there, color=SWITCH, lw=0.4, alpha=0.5)
    outer = _circle(fabric.switches_per_group, 1.16)
    for number, (here, there) in enumerate(zip(places, outer, strict=True)):
        _line(axes, here, there, color=FAR, lw=1.5)
        _box(axes, here, str(number), SWITCH, size=8)
    for share in (-0.3, 0.3):
        ends = _circle(fabric.switches_per_group, 1.13, turn=share)
        for here, there in zip(places, ends, strict=True):
            _line(axes, here, there, color=NIC, lw=1.2)
    links = (fabric.groups - 1) * fabric.global_links / fabric.switches_per_group
    axes.set_title(
        f"One group: {fabric.switches_per_group} switches, {fabric.nodes_per_group} nodes of "
        f"{machine.node.nics.count} NICs"
    )
    _legend(axes, [
        (f"{fabric.local_links} between any two", {"color": SWITCH, "lw": 1}),
        (f"{fabric.endpoints_per_switch} endpoints (2 drawn)", {"color": NIC, "lw": 1.5}),
        (f"{links:.3g} global links (1 drawn)", {"color": FAR, "lw": 1.5}),
    ], "links of each switch")  # fmt: skip
    axes.set_xlim(-1.3, 1.3)
    axes.set_ylim(-1.3, 1.3)


def _fat_tree(axes: Axes, machine: Machine, fabric: FatTree) -> None:
    """Spines above the leaves of the first two units, and the nodes of a unit below them."""
    axes.set_aspect("auto")
    units = min(fabric.units, 2)
    leaves = [(unit * (fabric.rails + 1) + rail, unit, rail)
              for unit in range(units) for rail in range(fabric.rails)]  # fmt: skip
    width = leaves[-1][0]
    shown = min(fabric.spines, 16)
    spines = [width * (i + 0.5) / shown for i in range(shown)]
    for x, unit, rail in leaves:
        for spine in spines:
            _line(axes, (x, 1.0), (spine, 2.0), color=QUIET, lw=0.4, alpha=0.6)
        centre = unit * (fabric.rails + 1) + (fabric.rails - 1) / 2
        _line(axes, (x, 1.0), (centre, 0.0), color=NIC, lw=1.6)
        _box(axes, (x, 1.0), f"rail {rail}", SWITCH, size=8)
    for number, spine in enumerate(spines):
        _box(axes, (spine, 2.0), str(number), FAR, size=8)
    for unit in range(units):
        centre = unit * (fabric.rails + 1) + (fabric.rails - 1) / 2
        text = f"unit {unit}: {fabric.nodes_per_unit} nodes of {machine.node.devices} devices"
        _box(axes, (centre, 0.0), text, DEVICE)
    rate = format_quantity(fabric.link_bytes_per_s, "bytes/s")
    axes.set_title(
        f"{machine.name}: {fabric.units} units ({units} shown) of {fabric.rails} leaves, "
        f"{fabric.spines} spines ({shown} shown)\n{fabric.uplinks_per_leaf} uplinks of {rate} "
        "per leaf; NIC k of every node of a unit is on the leaf of rail k"
    )
    axes.set_ylim(-0.4, 2.4)
