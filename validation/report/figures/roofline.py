"""The roofline figure of one step: what kinds of ops reach under the roofs of a device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies.files.units import format_quantity
from validation.report.figures.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    RED,
    canvas,
    plain_log_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TERA = 1e12
LOOKS = {"attention": (ORANGE, "D"), "step": (RED, "*")}  # of dots; all other work is matmuls
MATMUL = (BLUE, "o")
LEAST, MOST = 14.0, 1500.0  # areas of dots in square points: of no time, and of all compute
STEP_AREA = 190.0
NEAR = {"flop_per_byte": 0.09, "flops_per_s": 0.03}  # logarithms within which dots are one
GAP = 0.9  # lines between the names of dots apart
ROOM = 1.7  # beyond the dots, as a factor of intensity
WIDE = 300  # times the least intensity, from where labels of 1, 2, 5, 10 would touch
LEFT = 12.0  # how far below the ridge the figure begins, as a factor of intensity


def roofline(record: Mapping[str, Any]) -> Figure:
    """The roofline of an answer of `simgpt why` that has one: the whole of it, and close up with
    every kind's name. Dots have areas as shares of the time of compute."""
    found = record["why"]["roofline"]
    dots = [each for each in (*found["kinds"], found["step"]) if each["flop_per_byte"]]
    figure, (whole, near) = canvas(10.4, 5.0, columns=2)
    figure.suptitle(
        f"Roofline of {record['model']} on {record['machine']}, one of {record['devices']:,} "
        "devices",
        x=0.01, ha="left", fontsize=11,
    )  # fmt: skip
    names = _whole(whole, found["roofs"], dots)
    _near(near, found["roofs"], dots)
    figure.legend(
        handles=_handles(), loc="outside lower center", ncols=3, fontsize=8.5, columnspacing=2.0
    )
    _turn(whole, names)
    return figure


def _whole(axes: Axes, roofs: Mapping[str, Any], dots: Sequence[Mapping[str, Any]]) -> list[Any]:
    """All roofs, from where the memory limits to beyond the last dot; the names of the memory's,
    to be turned."""
    peaks, memory = roofs["peak_flops_per_s"], roofs["memory_bytes_per_s"]
    reach = [each["flop_per_byte"] for each in dots]
    ridge = min(peaks.values()) / memory
    low = min(ridge / LEFT, min(reach) / ROOM)
    high = max(max(peaks.values()) / memory, *reach) * 2.5
    rates = [each["flops_per_s"] for each in dots]
    bottom = min(low * roofs["reached_bytes_per_s"], min(rates) / ROOM) / TERA
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, 2.4 * max(peaks.values()) / TERA)
    x = np.geomspace(low, high, 400)
    for rate, style in ((memory, "-"), (roofs["reached_bytes_per_s"], "--")):
        over = x[x * rate <= max(peaks.values())]
        axes.plot(over, over * rate / TERA, style, color=INK, linewidth=1.3)
    _flat(axes, roofs, high)
    names = _name_memory(axes, roofs, low)
    _scatter(axes, dots)
    axes.set_xlabel("FLOPs per byte through memory")
    axes.set_ylabel("TFLOP/s")
    plain_log_ticks(axes, "x", steps=_steps(low, high))
    plain_log_ticks(axes, "y")
    axes.grid(which="major")
    axes.tick_params(labelsize=8)
    axes.set_title("Under all roofs", loc="left", fontsize=10)
    return names


def _steps(low: float, high: float) -> tuple[float, ...]:
    """Steps of a decade whose labels stand apart."""
    return (1.0, 3.0) if high > WIDE * low else (1.0, 2.0, 5.0)


def _flat(axes: Axes, roofs: Mapping[str, Any], high: float) -> None:
    """The peaks, from where the memory lets a device have them, and the best matmul; their names
    stand beside the axes, where no dot is."""
    for rate, style, words in _peaks(roofs):
        ends = [rate / roofs["memory_bytes_per_s"], high]
        axes.plot(ends, [rate / TERA] * 2, style, color=INK, linewidth=1.3)
        axes.annotate(
            f"{words},\n{format_quantity(rate, 'FLOP/s', digits=4)}",
            (high, rate / TERA), xytext=(4, 0), textcoords="offset points",
            ha="left", va="bottom" if style == "-" else "top", fontsize=8, color=INK,
            annotation_clip=False,
        )  # fmt: skip


def _peaks(roofs: Mapping[str, Any]) -> list[tuple[float, str, str]]:
    """FLOP/s, line style and name of each flat roof."""
    best = roofs["best_matmul_flops_per_s"]
    lines = [(peak, "-", f"{dtype} peak") for dtype, peak in roofs["peak_flops_per_s"].items()]
    return [*lines, *([(best, "--", "best matmul")] if best else [])]


def _name_memory(axes: Axes, roofs: Mapping[str, Any], low: float) -> list[Any]:
    """The names of the two lines of the memory, above and below them."""
    sheet, reached = roofs["memory_bytes_per_s"], roofs["reached_bytes_per_s"]
    at = low * 1.25
    return [
        axes.annotate(
            f"{words}{format_quantity(rate, 'bytes/s', digits=4)}",
            (at, at * rate / TERA), xytext=offset, textcoords="offset points",
            ha="left", va=side, fontsize=8, color=INK, rotation_mode="anchor",
        )
        for rate, words, side, offset in (
            (sheet, "memory, ", "bottom", (-3, 2)),
            (reached, "elementwise kernels, ", "top", (2, -3)),
        )
    ]  # fmt: skip


def _turn(axes: Axes, names: Sequence[Any]) -> None:
    """Turn the names as steep as the memory's lines are drawn, once the axes have their size."""
    axes.figure.canvas.draw()
    low, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
    (x0, y0), (x1, y1) = axes.transData.transform([(low, bottom), (10 * low, 10 * bottom)])
    for name in names:
        name.set_rotation(math.degrees(math.atan2(y1 - y0, x1 - x0)))


def _near(axes: Axes, roofs: Mapping[str, Any], dots: Sequence[Mapping[str, Any]]) -> None:
    """The dots close up, their names in a column to the right, in the order of their rates."""
    reach = [each["flop_per_byte"] for each in dots]
    low, high = min(reach) / ROOM, max(reach) * ROOM
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    top = 1.3 * max(each["flops_per_s"] for each in dots) / TERA
    axes.set_ylim(0, top)
    for rate, style, words in _peaks(roofs):
        if rate / TERA < top:
            axes.axhline(rate / TERA, linestyle=style, color=INK, linewidth=1.3)
            axes.annotate(
                words, (low, rate / TERA), xytext=(4, 2), textcoords="offset points", fontsize=7.5
            )
    x = np.geomspace(low, high, 200)
    axes.plot(x, x * roofs["memory_bytes_per_s"] / TERA, color=INK, linewidth=1.3)
    _scatter(axes, dots)
    _names(axes, dots)
    axes.set_xlabel("FLOPs per byte through memory")
    axes.set_ylabel("TFLOP/s")
    plain_log_ticks(axes, "x", steps=_steps(low, high))
    axes.tick_params(labelsize=8)
    axes.grid(which="major")
    axes.set_title("Close up, with each kind's share of compute", loc="left", fontsize=10)


def _names(axes: Axes, dots: Sequence[Mapping[str, Any]]) -> None:
    """The names of dots beside the axes, those of dots that lie on one another together, with a
    line to the first of them."""
    places = len(dots) + GAP * (len(groups := groups_of(dots)) - 1)
    above = 0.0
    for own in groups:
        axes.annotate(
            "\n".join(map(_named, own)),
            (own[0]["flop_per_byte"], own[0]["flops_per_s"] / TERA),
            xytext=(1.07, 1 - (above + len(own) / 2) / places), textcoords="axes fraction",
            ha="left", va="center", fontsize=8.5, color=INK, linespacing=1.35,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.7, "shrinkA": 4,
                        "shrinkB": 3, "relpos": (0, 0.5)},
        )  # fmt: skip
        above += len(own) + GAP


def _named(dot: Mapping[str, Any]) -> str:
    share = "" if dot["work"] == "step" else f"  {100 * dot['share']:.1f} %"
    return f"{dot['kind']}{share}"


def groups_of(dots: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Dots that lie on one another, those with the highest rates first."""
    groups: list[list[Mapping[str, Any]]] = []
    for dot in sorted(dots, key=lambda each: (-each["flops_per_s"], each["kind"])):
        near = next((own for own in groups if _are_near(own[0], dot)), None)
        if near is None:
            groups.append(near := [])
        near.append(dot)
    return groups


def _are_near(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if "step" in (one["work"], other["work"]):
        return False
    return all(abs(math.log(one[key] / other[key])) < NEAR[key] for key in NEAR)


def _scatter(axes: Axes, dots: Sequence[Mapping[str, Any]]) -> None:
    for each in dots:
        colour, marker = LOOKS.get(each["work"], MATMUL)
        is_step = each["work"] == "step"
        area = STEP_AREA if is_step else LEAST + (MOST - LEAST) * each["share"]
        axes.scatter(
            each["flop_per_byte"], each["flops_per_s"] / TERA, s=area, marker=marker, color=colour,
            edgecolor="white", linewidth=0.7, alpha=1.0 if is_step else 0.75,
            zorder=4 if is_step else 3,
        )  # fmt: skip


def _handles() -> list[Any]:
    """What the legend shows: a dot of each look."""
    from matplotlib.lines import Line2D

    named = {
        "products of matrices (area: share of compute)": MATMUL,
        "attention": LOOKS["attention"],
        "whole step, waiting included": LOOKS["step"],
    }
    return [
        Line2D([], [], linestyle="", marker=marker, color=colour, markersize=8, label=words)
        for words, (colour, marker) in named.items()
    ]
