"""The calendar of a run: training that is durable over time, failures and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validation.report.figures.style import BLUE, GREEN, RED, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from validation.report.whole_run.calendar import Calendar

UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0))
FAILURES_AT, JOBS_AT, FLOOR = -0.06, -0.14, -0.2  # below the curve, whose axis is a share


def calendar(found: Calendar) -> Figure:
    """The life of a run that was read with its progress."""
    figure, (axes,) = canvas(9.2, 3.9)
    whole_s = found.progress[-1][0]
    word, unit = next((each for each in UNITS if whole_s >= 2 * each[1]), UNITS[-1])
    moments = [at / unit for at, _ in found.progress]
    shares = [100 * share for _, share in found.progress]
    axes.step(moments, shares, where="post", color=BLUE, linewidth=1.6, label="training in saves")
    _events(axes, found, unit)
    axes.set_xlabel(f"{word} from the start, {found.start}")
    axes.set_ylabel("training done, %")
    axes.set_ylim(100 * FLOOR, 104)
    axes.set_yticks(range(0, 101, 20))
    axes.grid(axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=8.5)
    return figure


def _events(axes: Axes, found: Calendar, unit: float) -> None:
    """Failures as marks, and jobs as bars where there are several."""
    if found.failures_s:
        moments = [at / unit for at in found.failures_s]
        axes.plot(moments, [100 * FAILURES_AT] * len(moments), linestyle="", marker="|",
                  markersize=8, color=RED, label=f"failures ({found.failures:,})")  # fmt: skip
    if len(found.jobs_s) > 1:
        spans = [(start / unit, (end - start) / unit) for start, end in found.jobs_s]
        axes.broken_barh(spans, (100 * JOBS_AT - 2, 4), color=GREEN,
                         label=f"jobs ({len(spans):,})")  # fmt: skip
