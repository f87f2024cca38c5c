"""Figures of answers: how steps scale, and predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from validation.overlay import PublishedStep, published_step
from validation.report.answers import Pair
from validation.report.figures.style import BLUE, INK, LINES, RED, canvas, plain_log_ticks
from validation.report.provenance import is_usual
from validation.report.read_prediction import Answer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from validation.weak_scaling import Rung

MOST_LINES = 8
UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
PUBLISHED: dict[str, Any] = {
    "color": RED, "marker": "D", "markersize": 7, "markerfacecolor": "none",
    "markeredgewidth": 1.6, "linestyle": "none",
}  # fmt: skip
RING: dict[str, Any] = {
    "color": RED, "marker": "o", "markersize": 10, "markerfacecolor": "none", "linestyle": "none",
}  # fmt: skip
# How a legend that lines may pass behind stays legible.
OVER_LINES: dict[str, Any] = {
    "frameon": True, "facecolor": "white", "edgecolor": "none", "framealpha": 0.85,
}  # fmt: skip


def shorter(text: str, width: int = 46) -> str:
    """Text cut to a width, so that a long plan leaves room for the bars."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def time_unit(step_s: float) -> tuple[str, float]:
    """The unit in which times of a step are told, and its seconds."""
    return next((unit for unit in UNITS if step_s >= 2 * unit[1]), UNITS[-1])


def seconds(value: float) -> str:
    """A duration with the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.9995 * size:
            return f"{_three(value / size)} {unit}"
    return f"{_three(value / 1e-6)} µs"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")


def scaling(lines: Mapping[str, Sequence[Answer]]) -> Figure:
    """FLOP/s of the whole job, and the share of the peak, over the number of devices."""
    figure, (left, right) = canvas(9.2, 3.7, columns=2)
    for (name, line), (colour, marker, dash) in zip(
        list(lines.items())[:MOST_LINES], LINES, strict=False
    ):
        devices = [answer.devices for answer in line]
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "linestyle": dash,
            "markersize": 5,
        }
        rates = [answer.flops_per_s / 1e15 for answer in line]
        left.plot(devices, rates, label=name, **style)
        ideal = [rates[0] * n / devices[0] for n in devices]
        left.plot(devices, ideal, color=colour, linewidth=0.7, linestyle=(0, (1, 3)))
        right.plot(devices, [100 * answer.hfu for answer in line], label=name, **style)
    points = published_points(lines)
    _overlay(left, [(at.devices, at.flops_per_s * at.step_s / p.step_s / 1e15) for at, p in points])
    _overlay(right, [(at.devices, 100 * p.hfu) for at, p in points])
    left.set_yscale("log")
    plain_log_ticks(left, "y")
    left.set_ylabel("model PFLOP/s, all devices")
    left.set_title("Throughput (dotted: ideal)")
    shares = [answer.hfu for line in lines.values() for answer in line]
    right.set_ylim(0, 115 * max(shares + [published.hfu for _, published in points]))
    right.set_ylabel("HFU, % of peak")
    right.set_title("Share of the peak")
    for axes in (left, right):
        device_axis(axes, sorted({a.devices for line in lines.values() for a in line}))
    right.legend(fontsize=8.5, **OVER_LINES)
    return figure


def scatter(found: Sequence[Answer], about: Answer | None = None) -> Figure:
    """The step of each answer against its peak memory; a ring around the answer."""
    figure, (axes,) = canvas(7.0, 4.2)
    word, unit = time_unit(max(answer.step_s for answer in found))
    for fits, face in ((True, BLUE), (False, "none")):
        own = [answer for answer in found if answer.fits is fits]
        axes.scatter([a.step_s / unit for a in own], [a.peak_bytes / 2**30 for a in own], s=24,
                     facecolor=face, edgecolor=BLUE, linewidth=0.8, zorder=3)  # fmt: skip
    if about in found and about is not None:
        axes.plot(about.step_s / unit, about.peak_bytes / 2**30, **RING)
    axes.set_xlabel(f"one step, {word}")
    axes.set_ylabel("peak memory per device, GiB")
    axes.grid(visible=True)
    return figure


def published_points(
    lines: Mapping[str, Sequence[Answer]],
) -> list[tuple[Answer, PublishedStep]]:
    """The answers on the lines, of usual models and machines, whose step was published, with it."""
    found = []
    for answer in (answer for line in lines.values() for answer in line if is_usual(answer.asked)):
        asked = answer.asked
        step = published_step(asked["model"], asked["machine"], answer.devices, answer.batch)
        found += [(answer, step)] if step else []
    return found


def _overlay(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Published points over the lines."""
    if points:
        axes.plot(*zip(*points, strict=True), label="published", **PUBLISHED)


def device_axis(axes: Axes, devices: Sequence[int]) -> None:
    """A logarithmic axis with a tick at each number of devices."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xticks(devices, [f"{n:,}" for n in devices], rotation=30, ha="right")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("devices")
    axes.grid(visible=True)


def measured(pairs: Sequence[Pair]) -> Figure:
    """Predicted over measured seconds, with a band of 10 % either way."""
    known = [pair for pair in pairs if pair.predicted_s is not None]
    figure, (axes,) = canvas(5.2, 4.4)
    origins = list(dict.fromkeys(pair.origin for pair in known))
    for origin, (colour, marker, _) in zip(origins, LINES, strict=False):
        own = [pair for pair in known if pair.origin == origin]
        axes.scatter([p.measured_s for p in own], [p.predicted_s or 0.0 for p in own], s=26,
                     color=colour, marker=marker, edgecolor="white", linewidth=0.4,
                     label=shorter(origin, 30), zorder=3)  # fmt: skip
    values = [v for pair in known for v in (pair.measured_s, pair.predicted_s) if v]
    ends = [0.7 * min(values), 1.4 * max(values)]
    axes.plot(ends, ends, color=INK, linewidth=0.9)
    axes.fill_between(ends, [0.9 * v for v in ends], [1.1 * v for v in ends], color="#DDDDDD",
                      zorder=1, label="within 10 %")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    plain_log_ticks(axes, "x")
    plain_log_ticks(axes, "y")
    axes.set_xlabel("measured step, s")
    axes.set_ylabel("predicted step, s")
    axes.set_title("Predicted and measured")
    axes.legend(fontsize=8.5, loc="upper left")
    return figure


def weak_scaling(machine: str, rungs: Sequence[Rung]) -> Figure:
    """Predicted share of the peak over a ladder of models, with the published points on it."""
    figure, (axes,) = canvas(5.6, 3.9)
    devices = [rung.prediction.devices for rung in rungs]
    axes.plot(devices, [100 * rung.prediction.hfu for rung in rungs], color=BLUE, marker="o",
              markersize=5, label="predicted")  # fmt: skip
    known = [rung for rung in rungs if rung.published_hfu is not None]
    axes.plot([rung.prediction.devices for rung in known],
              [100 * (rung.published_hfu or 0.0) for rung in known],
              label="published (AxoNN, SC24)", **PUBLISHED)  # fmt: skip
    top = max(100 * max(rung.prediction.hfu, rung.published_hfu or 0.0) for rung in rungs)
    for rung in rungs:
        above = 100 * max(rung.prediction.hfu, rung.published_hfu or 0.0)
        axes.annotate(rung.prediction.gpt.name.removeprefix("gpt-").upper(),
                      (rung.prediction.devices, above), fontsize=8.5,
                      xytext=(0, 8), textcoords="offset points", ha="center")  # fmt: skip
    axes.set_ylim(0, 1.15 * top)
    axes.set_ylabel("HFU, % of peak")
    axes.set_title(f"Weak scaling of AxoNN's ladder of models on {machine}")
    device_axis(axes, devices)
    axes.margins(x=0.08)
    axes.legend(loc="lower left", fontsize=9)
    return figure
