"""Figures of steps with noise: how they are distributed, and by what they are longer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.noise.played import END, OWN, cause_of
from validation.report.figures.scaling_figures import seconds, shorter, time_unit
from validation.report.figures.style import BLUE, GREY, INK, PALE, RED, canvas, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 12
MOST_BARS = 8
LEAST_SHARE = 0.005  # of the excess: parts below are not drawn


def noise_figure(found: Mapping[str, Any]) -> Figure:
    """The steps that were drawn, and the parts of what they are longer by, side by side; `found` as
    it stands in an answer under `variability`."""
    figure, (left, right) = canvas(9.2, 3.7, columns=2)
    _steps(left, found)
    _excess(right, found)
    return figure


def _steps(axes: Axes, found: Mapping[str, Any]) -> None:
    word, unit = time_unit(found["noise_free_step_s"])
    steps = [step / unit for step in found["steps_s"]]
    low, high = (bound / unit for bound in found["interval_step_s"])
    slow = found["one_slow_device"]
    axes.axvspan(low, high, color=PALE, alpha=0.5, linewidth=0, label="90 % of the samples")
    axes.hist(steps, bins=min(BINS, len(steps)), color=BLUE, edgecolor="white", linewidth=0.5,
              label=f"steps with noise ({len(steps):,})")  # fmt: skip
    free = found["noise_free_step_s"]
    axes.axvline(free / unit, color=INK, linewidth=1.2,
                 label=f"without noise, {seconds(free)}")  # fmt: skip
    axes.axvline(slow["step_s"] / unit, color=RED, linestyle="--", linewidth=1.2,
                 label=f"one device {100 * slow['slower_by']:g} % slower")  # fmt: skip
    axes.set_xlabel(f"one step, {word}")
    axes.set_ylabel("samples")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, fontsize=8.5)


def _excess(axes: Axes, found: Mapping[str, Any]) -> None:
    parts = drawn_parts(found["excess_s"])
    word, unit = time_unit(max(map(abs, parts.values()), default=1.0))
    for row, (part, excess) in enumerate(parts.items()):
        colour, hatch = (GREY, "") if part in (OWN, END) else look_of(part)
        axes.barh(row, excess / unit, height=0.62, color=colour, hatch=hatch, edgecolor="white",
                  linewidth=0.5)  # fmt: skip
        axes.text(max(excess, 0) / unit, row, f" {signed_seconds(excess)}", va="center", fontsize=9)
    axes.set_yticks(range(len(parts)), [shorter(cause_of(part), 34) for part in parts])
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel(f"added to the step of the mean rank, {word}")
    axes.grid(axis="x")


def signed_seconds(value: float) -> str:
    """A duration that may be less than nothing."""
    return seconds(value) if value >= 0 else f"-{seconds(-value)}"


def drawn_parts(excess_s: Mapping[str, float]) -> dict[str, float]:
    """The parts that have a bar, the largest first."""
    total = sum(map(abs, excess_s.values()))
    ordered = sorted(excess_s.items(), key=lambda item: -item[1])
    found = {key: each for key, each in ordered if abs(each) > LEAST_SHARE * total}
    return dict(list(found.items())[:MOST_BARS])
