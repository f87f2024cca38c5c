"""A node with what its links carry, and how busy every sort of link is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from topologies.collectives.link_loads import SWITCH, LinkLoads
from topologies.files.units import format_quantity
from topologies.machine import Machine
from validation.report.figures.drawn_step import Scene
from validation.report.figures.style import BLUE, GREY, INK, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]
COLOURS = "cividis_r"  # even in grey, and for the colour-blind


def link_load(scene: Scene) -> Figure:
    """The node's links and NICs, the busier the darker, and all sorts of links as bars."""
    figure, _ = canvas(9.6, 4.6)
    figure.clear()
    left, right = figure.subplots(1, 2, width_ratios=[1.05, 1])
    _node(left, scene.machine, scene.loads, scene.step_s)
    _bars(right, scene.loads, scene.step_s)
    return figure


def _node(axes: Axes, machine: Machine, loads: LinkLoads, step_s: float) -> None:
    import matplotlib as mpl
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    busy = _busy_links(machine, loads, step_s)
    nics = [nbytes / machine.node.nics.bytes_per_s / step_s for nbytes in loads.nics]
    top = max([*busy.values(), *nics, 1e-6])
    scale: Any = ScalarMappable(Normalize(0, 100 * top), mpl.colormaps[COLOURS])
    spots = _spots(machine)
    counts = machine.node.link_counts()
    for (a, b), share in busy.items():
        here, there = spots[a], spots[b]
        width = 1.6 + 1.3 * math.sqrt(counts.get((a, b), 1))
        _line(axes, here, there, color=scale.to_rgba(100 * share), linewidth=width)
    for nic, share in enumerate(nics):
        at = spots["nic", nic]
        for device, own in enumerate(machine.node.nics.of_device):
            if own == nic:
                _line(axes, spots[device], at, color=GREY, linewidth=0.8, linestyle=":")
        outside = (1.42 * at[0], 1.42 * at[1])
        _line(axes, at, outside, color=scale.to_rgba(100 * share), linewidth=4)
        _box(axes, at, f"NIC {nic}", "#FFF3D6")
    for device in range(machine.node.devices):
        _box(axes, spots[device], str(device), "#DCEBF7")
    if machine.node.links.switch:
        _box(axes, spots[SWITCH], "switch", "#E3F3EC")
    axes.set_title(f"A node of {machine.name}")
    axes.set_aspect("equal")
    axes.axis("off")
    axes.margins(0.08)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -1.0), max(high, 1.0))  # one device or two stand on a line
    bar = axes.figure.colorbar(scale, ax=axes, shrink=0.7, label="link in use, % of the step")
    if bar.solids is not None:
        bar.solids.set_edgecolor("face")
        bar.solids.set_rasterized(False)  # else it is an image inside the SVG


def _busy_links(machine: Machine, loads: LinkLoads, step_s: float) -> dict[tuple[int, int], float]:
    """The share of the step in which each link of the node is in use, idle ones too."""
    node = machine.node
    if node.links.switch:
        rates = {(device, SWITCH): node.device_bytes_per_s for device in range(node.devices)}
    else:
        rates = {link: n * node.link_bytes_per_s for link, n in node.link_counts().items()}
    return {link: loads.links.get(link, 0.0) / rate / step_s for link, rate in rates.items()}


def _spots(machine: Machine) -> dict[Any, Point]:
    """Devices on a circle, their NICs outside it, a switch in the middle."""
    node = machine.node
    spots: dict[Any, Point] = {SWITCH: (0.0, 0.0)}
    for device in range(node.devices):
        angle = math.pi / 2 - 2 * math.pi * (device + 0.5) / node.devices
        spots[device] = (math.cos(angle), math.sin(angle))
    for nic in range(node.nics.count):
        own = [spots[d] for d, k in enumerate(node.nics.of_device) if k == nic] or [(0.0, 1.0)]
        x, y = (sum(values) / len(own) for values in zip(*own, strict=True))
        length = math.hypot(x, y) or 1.0
        spots["nic", nic] = (1.5 * x / length, 1.5 * y / length)
    return spots


def _line(axes: Axes, a: Point, b: Point, **style: Any) -> None:
    axes.plot([a[0], b[0]], [a[1], b[1]], zorder=1, **style)


def _box(axes: Axes, at: Point, text: str, colour: str) -> None:
    style = {"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "#666666"}
    axes.text(*at, text, ha="center", va="center", fontsize=9, bbox=style, zorder=3)


def _bars(axes: Axes, loads: LinkLoads, step_s: float) -> None:
    """How busy the busiest and the mean link of each sort is."""
    for row, load in enumerate(loads.sorts):
        most = 100 * load.busy(step_s)
        mean = most * load.mean_bytes / load.most_bytes if load.most_bytes else 0.0
        axes.barh(row, most, height=0.5, color=BLUE, edgecolor="white", linewidth=0)
        axes.plot([mean, mean], [row - 0.3, row + 0.3], color=INK, linewidth=1.6)
        rate = format_quantity(load.bytes_per_s, "bytes/s")
        words = f" {most:.1f} %: {format_quantity(load.most_bytes, 'bytes')}, at {rate}"
        axes.text(0, row - 0.33, words, va="bottom", fontsize=8.5, color="#444444")
    axes.set_yticks(range(len(loads.sorts)), [load.words for load in loads.sorts])
    axes.set_ylim(len(loads.sorts) - 0.5, -0.8)
    axes.set_xlim(left=0)
    axes.set_xlabel("busiest link in use, % of the step")
    axes.set_title("Load per direction (line: mean)")
    axes.grid(axis="x")
