"""A pipeline as it is drawn on whiteboards: a row for each stage, a box for each pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from simulator.attribution.pipeline_slots import SlotSpan
from validation.report.figures.scaling_figures import seconds, time_unit
from validation.report.figures.style import BLUE, GREEN, INK, ORANGE, PALE, canvas, fitting_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_STAGES = 32
CLOSE_UP = 0.1  # of the step
BOXES = 60  # of a stage: a chart with more of them has a close-up of the begin
NAMES = {
    "forward": ("forward", BLUE),
    "backward": ("backward", ORANGE),
    "input": ("backward: gradients of activations", ORANGE),
    "weight": ("backward: gradients of weights", GREEN),
    "perturb": ("perturbation", GREEN),
}
AFTER = "sums of gradients, optimizer"
Stages = Sequence[Sequence[SlotSpan]]


def pipeline_chart(
    stages: Stages, step_s: float, *, title: str = "", measured_s: float | None = None
) -> Figure:
    """The slots of each stage over the whole step, later chunks darker, and a close-up of its begin
    if there are many. A measured step is marked by a line."""
    shown = stages[:MOST_STAGES]
    rows = 2 if max(map(len, shown)) > BOXES else 1
    figure, _ = canvas(9.2, 1.3 + rows * (0.5 + 0.3 * len(shown)))
    figure.clear()
    word, unit = time_unit(step_s)
    each = list(figure.subplots(rows, 1, squeeze=False)[:, 0])
    for axes in each:
        _draw(axes, shown, step_s, unit, edge=0.0 if axes is each[0] and rows > 1 else 0.4)
    each[0].set_xlim(0, 1.002 * max(step_s, measured_s or 0.0) / unit)
    each[0].set_title(title)
    if measured_s is not None:
        each[0].axvline(measured_s / unit, color=INK, linewidth=1.6, linestyle="--")
    if rows > 1:
        each[1].set_xlim(0, CLOSE_UP * step_s / unit)
        each[1].set_title(f"The first {seconds(CLOSE_UP * step_s)}")
    each[-1].set_xlabel(f"{word} after the step's begin")
    handles, names = _key(shown)
    fitting_legend(figure, handles, names, "outside lower center")
    return figure


def _draw(axes: Axes, stages: Stages, step_s: float, unit: float, *, edge: float) -> None:
    chunks = 1 + max(span.slot.chunk for stage in stages for span in stage)
    for row, stage in enumerate(stages):
        boxes = [(span.start_s / unit, (span.end_s - span.start_s) / unit) for span in stage]
        colours = [_colour(span, chunks) for span in stage]
        axes.broken_barh(boxes, (row - 0.4, 0.8), facecolors=colours, edgecolor="white",
                         linewidth=edge)  # fmt: skip
        over = max(span.end_s for span in stage)
        axes.broken_barh([(over / unit, (step_s - over) / unit)], (row - 0.4, 0.8),
                         facecolors=PALE, hatch="////", edgecolor="white", linewidth=0)  # fmt: skip
    axes.set_yticks(range(len(stages)), [f"stage {number}" for number in range(len(stages))])
    axes.set_ylim(len(stages) - 0.5, -0.5)


def _colour(span: SlotSpan, chunks: int) -> tuple[float, ...]:
    """Its work's colour, darker from chunk to chunk."""
    from matplotlib.colors import to_rgb

    strength = 1.0 if chunks == 1 else 0.45 + 0.55 * span.slot.chunk / (chunks - 1)
    return tuple(1 - strength * (1 - part) for part in to_rgb(NAMES[span.slot.work][1]))


def _key(stages: Stages) -> tuple[list[object], list[str]]:
    from matplotlib.patches import Patch

    works = list(dict.fromkeys(_works(stages)))
    chunks = 1 + max(span.slot.chunk for stage in stages for span in stage)
    darker = f", darker: later of {chunks} chunks" if chunks > 1 else ""
    handles: list[object] = [Patch(facecolor=NAMES[work][1]) for work in works]
    handles.append(Patch(facecolor=PALE, hatch="////", edgecolor="white"))
    handles.append(Patch(facecolor="white", edgecolor=PALE))
    names = [NAMES[work][0] for work in works]
    names[0] += darker
    return handles, [*names, AFTER, "waiting"]


def _works(stages: Stages) -> Iterator[str]:
    for stage in stages:
        for span in stage:
            yield span.slot.work
