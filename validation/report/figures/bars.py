"""Where the step of each answer goes, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from validation.report.figures.labels import labels
from validation.report.figures.scaling_figures import seconds, shorter, time_unit
from validation.report.figures.style import GREY, INK, canvas, fitting_legend, look_of
from validation.report.read_prediction import Answer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patheffects import AbstractPathEffect

MOST_BARS = 16
WHITE = "#FFFFFF"
FAINT = 0.45  # of the colours: what the bar of a plan that does not fit has
LEAST_SHARE = 0.004  # of a bar: less is drawn together as "rest"
NAMES = {
    "pp": "waiting for other stages", "host": "waiting for the host", "compute": "compute",
    "optimizer": "optimizer",
}  # fmt: skip


# The range within which a step is expected, as a line with ends at the end of its bar.
WHISKERS: dict[str, Any] = {
    "color": INK, "linewidth": 1.0, "capsize": 3.0, "capthick": 1.0, "zorder": 4,
}  # fmt: skip


def name_of(part: str) -> str:
    """What a part of the breakdown is, in words."""
    return NAMES.get(part, "idle" if part == "idle" else shorter(f"waiting on {part}", 30))


def breakdown(
    shown: Sequence[Answer], among: Sequence[Answer] = (), about: Answer | None = None
) -> Figure:
    """A bar for each prediction: what its step consists of.

    Labels tell it from all `among` which it was chosen; that of `about` is bold.
    """
    names = [_named(name, a) for name, a in zip(labels(shown, among), shown, strict=True)]
    lines = sum(name.count("\n") + 1 for name in names)
    figure, (axes,) = canvas(8.4, 1.7 + 0.42 * len(shown) + 0.1 * (lines - len(shown)))
    word, unit = time_unit(max(answer.step_s for answer in shown))
    groups = _alike(_parts(shown))
    for row, answer in enumerate(shown):
        _bar(axes, row, answer, groups, unit)
    axes.set_yticks(range(len(shown)), names)
    for answer, tick in zip(shown, axes.get_yticklabels(), strict=True):
        tick.set_fontweight("bold" if answer is about and len(shown) > 1 else "normal")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel(f"one step, {word}")
    axes.grid(axis="x")
    _legend_above(figure, axes)
    return figure


def _named(name: str, answer: Answer) -> str:
    return name if answer.fits else f"{name}\n(does not fit)"


def _bar(
    axes: Axes, row: int, answer: Answer, groups: Sequence[Sequence[str]], unit: float
) -> None:
    left = 0.0
    for parts in groups:
        width = sum(_width(answer, part) for part in parts) / unit
        colour, hatch = _look(parts[0])
        axes.barh(row, width, left=left, height=0.62, hatch=hatch,
                  color=colour if answer.fits else _fainter(colour),
                  edgecolor="white" if colour != WHITE else GREY, linewidth=0.5,
                  label=_label(parts))  # fmt: skip
        left += width
    end = left
    if answer.range_s is not None:
        low, step, high = (v / unit for v in (answer.range_s[0], answer.step_s, answer.range_s[1]))
        drawn = axes.errorbar(step, row, xerr=[[step - low], [high - step]], **WHISKERS)
        for line in (*drawn[1], *drawn[2]):  # the caps, and the line between them
            line.set_path_effects(_edged())
        end = max(left, high)
    axes.text(end, row, f" {seconds(answer.step_s)}", va="center", fontsize=9)


def _edged() -> list[AbstractPathEffect]:
    """A white edge around a line, which shows it on bars as dark as itself."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=3.0, foreground=WHITE)]


def _fainter(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(1 - FAINT * (1 - part) for part in to_rgb(colour))


def _alike(parts: Sequence[str]) -> list[list[str]]:
    """Parts that look the same are drawn as one, since nobody could tell them apart."""
    groups: dict[object, list[str]] = {}
    for part in parts:
        groups.setdefault("rest" if part == "rest" else _look(part), []).append(part)
    return list(groups.values())


def _look(part: str) -> tuple[str, str]:
    return (WHITE, "") if part == "rest" else look_of(part)


def _label(parts: Sequence[str]) -> str:
    return "rest" if parts[0] == "rest" else name_of(", ".join(parts))


def _parts(shown: Sequence[Answer]) -> list[str]:
    """Parts that count in some bar, compute first and then the largest."""
    sums: dict[str, float] = {}
    for answer in shown:
        for part, value in answer.breakdown_s.items():
            if value / answer.step_s >= LEAST_SHARE:
                sums[part] = sums.get(part, 0.0) + value
    ordered = sorted(sums, key=lambda part: (part != "compute", -sums[part]))
    return [*ordered, "rest"]


def _width(answer: Answer, part: str) -> float:
    if part != "rest":
        value = answer.breakdown_s.get(part, 0.0)
        return value if value / answer.step_s >= LEAST_SHARE else 0.0
    least = LEAST_SHARE * answer.step_s
    return sum(value for value in answer.breakdown_s.values() if value < least)


def _legend_above(figure: Figure, axes: Axes) -> None:
    unique: dict[str, Any] = {}
    for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
        unique.setdefault(name, handle)  # the first bar's, since the last ones may be faint
    fitting_legend(figure, list(unique.values()), list(unique), "outside upper right")
