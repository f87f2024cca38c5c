"""Figures of one simulated step: its timeline, memory over time, links, and what it depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies.files.units import format_quantity
from validation.report.figures.drawn_step import MemoryCurve, Scene, Track
from validation.report.figures.scaling_figures import seconds, time_unit
from validation.report.figures.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    RED,
    ROLES,
    canvas,
    fitting_legend,
    look_of,
)
from workload.kinds import ATTENTIONS, MATMULS
from workload.op import COMPUTE, HOST, STEP, Op

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 200
CLOSE_UP_OPS = 44
POINTS = 400
MOST_ROWS = 14
SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
ROOMY = 4  # times the peak: a device with more than that is told of, not drawn
PATCH = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}  # behind words
COMPUTE_SORTS = ("matmul", "attention", "elementwise", "optimizer")


def sort_of(op: Op) -> str:
    """Under which look an op is drawn: a sort of compute, or its axes."""
    if op.communicates:
        return "+".join(op.axes) or "pp"
    if op.block == STEP:
        return "optimizer"
    if op.kind in MATMULS:
        return "matmul"
    return "attention" if op.kind in ATTENTIONS else "elementwise"


def timeline(scene: Scene) -> Figure:
    """What the streams of one rank do: over the whole step, and close up."""
    track = scene.tracks[0]
    streams = streams_of(track)
    figure, _ = canvas(9.2, 2.6 + 0.62 * len(streams), columns=1)
    figure.clear()
    above, below = figure.subplots(2, 1, height_ratios=[1.15, 1])
    word, unit = time_unit(scene.step_s)
    binned(above, track, streams, scene.step_s, unit)
    above.set_title(f"Rank {track.rank}: the whole step, as shares of {BINS} equal times")
    begin, end = _close_up(track)
    _spans(below, track, streams, (begin, end), unit)
    below.set_title(f"Close up: {seconds(begin)} to {seconds(end)}")
    for axes in (above, below):
        axes.set_yticks([n + 0.5 for n in range(len(streams))], streams)
        axes.set_ylim(len(streams), 0)
    below.set_xlabel(f"{word} after the step's begin")
    handles = patches_of(list(dict.fromkeys(sort_of(op) for op in track.ops)))
    names = [handle.get_label() for handle in handles]
    fitting_legend(figure, handles, names, "outside lower center")
    return figure


def streams_of(track: Track) -> list[str]:
    """The rank's streams, compute first."""
    return [COMPUTE, *sorted({op.stream for op in track.ops} - {COMPUTE})]


def patches_of(sorts: Sequence[str]) -> list[Any]:
    """A patch for every look; collectives that look alike share one."""
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=c, hatch=h, edgecolor="white", linewidth=0.4, label=words)
        for (c, h), words in looks_of(sorts).items()
    ]


def looks_of(sorts: Sequence[str]) -> dict[tuple[str, str], str]:
    """What each colour and hatch stands for, in words."""
    named: dict[tuple[str, str], list[str]] = {}
    for sort in sorts:
        named.setdefault(look_of(sort), []).append(sort)
    return {look: _words(alike) for look, alike in named.items()}


def _words(sorts: Sequence[str]) -> str:
    """What a patch stands for: `matmul`, `collectives over z, z+dp`."""
    if sorts[0] in COMPUTE_SORTS:
        return sorts[0]
    return "between stages" if "pp" in sorts else f"collectives over {', '.join(sorts)}"


def binned(axes: Axes, track: Track, streams: Sequence[str], step_s: float, unit: float) -> None:
    """Each stream as stacked shares of every bin, by sort of op."""
    from matplotlib.patches import StepPatch

    edges = np.linspace(0.0, step_s, BINS + 1)
    for row, stream in enumerate(streams):
        floor: Any = np.zeros(BINS)  # matplotlib says of a baseline that it is one number
        for sort in dict.fromkeys(sort_of(op) for op in track.ops):
            chosen = [
                i for i, op in enumerate(track.ops) if op.stream == stream and sort_of(op) == sort
            ]
            if not chosen:
                continue
            start, end = (np.array(values)[chosen] for values in (track.start_s, track.end_s))
            share = _covered(edges, start, end) / (step_s / BINS)
            colour, hatch = look_of(sort)
            # Limits are set below: added as a patch, its outlines would be searched for them.
            axes.add_artist(StepPatch(
                row + 0.95 - 0.9 * floor - 0.9 * share, edges / unit, fill=True,
                facecolor=colour, baseline=row + 0.95 - 0.9 * floor, hatch=hatch,
                edgecolor="white", linewidth=0.1,
            ))  # fmt: skip
            floor = floor + share
    axes.set_xlim(0, step_s / unit)


def _covered(edges: Any, start: Any, end: Any) -> Any:
    """Seconds of each bin that disjoint spans cover."""
    order = np.argsort(start)
    start, end = start[order], end[order]
    before = np.concatenate([[0.0], np.cumsum(end - start)])
    place = np.searchsorted(start, edges, side="right")
    over = np.where(place > 0, np.maximum(end[place - 1] - edges, 0.0), 0.0)
    return np.diff(before[place] - np.where(place > 0, over, 0.0))


def _close_up(track: Track) -> tuple[float, float]:
    """From the middle of the compute stream on, so many ops."""
    own = [n for n, op in enumerate(track.ops) if op.stream == COMPUTE]
    first = max(min(len(own) // 2, len(own) - CLOSE_UP_OPS), 0)
    last = min(first + CLOSE_UP_OPS, len(own)) - 1
    return track.start_s[own[first]], track.end_s[own[last]]


def _spans(
    axes: Axes, track: Track, streams: Sequence[str], shown: tuple[float, float], unit: float
) -> None:
    begin, end = shown
    for op, start, stop in zip(track.ops, track.start_s, track.end_s, strict=True):
        if stop > begin and start < end:
            colour, hatch = look_of(sort_of(op))
            axes.broken_barh([(start / unit, (stop - start) / unit)],
                             (streams.index(op.stream) + 0.08, 0.84), facecolor=colour,
                             hatch=hatch, edgecolor="white", linewidth=0.4)  # fmt: skip
    axes.set_xlim(begin / unit, end / unit)


def memory(curve: MemoryCurve, step_s: float, capacity_bytes: float) -> Figure:
    """Memory by part over time, with what the device has."""
    figure, (axes,) = canvas(9.2, 3.5)
    parts = {role: row for role, row in curve.parts.items() if role != HOST}
    at_s, rows = _thinned(np.array(curve.at_s), np.array(list(parts.values()), dtype=float))
    peak = float(rows.sum(axis=0).max())
    size, each = next((unit for unit in SIZES if peak >= unit[1]), SIZES[-1])
    word, unit = time_unit(step_s)
    floor = np.zeros(len(at_s))
    for n in sorted(range(len(rows)), key=lambda n: float(np.ptp(rows[n]))):
        role = list(parts)[n]
        colour, hatch = ROLES[role]
        axes.fill_between(at_s / unit, floor / each, (floor + rows[n]) / each, step="post",
                          facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0.2,
                          label=role)  # fmt: skip
        floor = floor + rows[n]
    _limit(axes, step_s / unit, peak / each, capacity_bytes / each, capacity_bytes)
    axes.set_xlabel(f"{word} after the step's begin")
    axes.set_ylabel(f"memory in use, {size}")
    axes.set_title(f"Memory of rank {curve.rank}")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return figure


def _limit(axes: Axes, end: float, peak: float, capacity: float, capacity_bytes: float) -> None:
    """What the device has as a line, or where it is far above, told of at the top of the plot."""
    drawn = capacity <= ROOMY * peak
    top = 1.12 * max(capacity, peak) if drawn else 1.24 * peak
    words = f"memory for tensors, {capacity_bytes / 2**30:,.0f} GiB"
    if drawn:
        axes.axhline(capacity, color=RED, linestyle="--", linewidth=1.2)
    else:
        words = f"↑ {words}: {_times(capacity / peak)} the peak, far above what is drawn"
    axes.text(end, capacity if drawn else 0.98 * top, words, ha="right",
              va="bottom" if drawn else "top", color=INK, fontsize=9, bbox=PATCH)  # fmt: skip
    axes.set_xlim(0, end)
    axes.set_ylim(0, top)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 9.95 else f"{ratio:.1f} times"


def _thinned(at_s: Any, rows: Any) -> tuple[Any, Any]:
    """Of every few points the one at which most is in use, so that no peak is lost."""
    if len(at_s) <= POINTS:
        return at_s, rows
    total = rows.sum(axis=0)
    bounds = np.linspace(0, len(at_s), POINTS + 1).astype(int)
    kept = [a + int(total[a:b].argmax()) for a, b in pairwise(bounds.tolist()) if b > a]
    return at_s[kept], rows[:, kept]


def _parameter(row: Mapping[str, Any]) -> str:
    unit, value = row["unit"], row["value"]
    known = unit in ("bytes/s", "FLOP/s", "s")
    return f"{row['key']} ({format_quantity(value, unit) if known else f'{value:g}'})"


def tornado(sensitivity: Sequence[Mapping[str, Any]]) -> Figure:
    """Elasticities as bars to the left (more of it is faster) and to the right."""
    ordered = sorted(sensitivity, key=lambda row: -abs(row["elasticity"]))
    shown = [row for row in ordered if abs(row["elasticity"]) >= 5e-4][:MOST_ROWS] or ordered[:1]
    figure, (axes,) = canvas(8.4, 1.2 + 0.32 * len(shown))
    reach = max(abs(row["elasticity"]) for row in shown) or 1.0
    for number, row in enumerate(shown):
        value = float(row["elasticity"])  # a whole number of a file may be beyond 64 bits
        good = value < 0
        axes.barh(number, value, height=0.66, color=BLUE if good else ORANGE,
                  hatch="" if good else "///", edgecolor="white", linewidth=0)  # fmt: skip
        axes.text(value + (-0.02 if good else 0.02) * reach, number, f"{value:+.3f}",
                  ha="right" if good else "left", va="center", fontsize=8.5)  # fmt: skip
    axes.set_yticks(range(len(shown)), [_parameter(row) for row in shown])
    axes.invert_yaxis()
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_xlim(-1.25 * reach, 1.25 * reach)
    axes.set_xlabel("per cent of the step for one per cent more of it (d ln t / d ln p)")
    axes.set_title("◀ more of it makes the step shorter        longer ▶", loc="center", color=GREY)
    axes.grid(axis="x")
    return figure
