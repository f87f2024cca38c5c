"""The section of a report that draws the MFU waterfall: from 100 % of the peak to the MFU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simulator.explain.mfu_waterfall import mfu_waterfall, waterfall_rows
from validation.report.figures.drawn_step import Scene
from validation.report.figures.style import BLUE, GREEN, RED, canvas
from validation.report.page import Drawing, PageTable, Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[tuple[str, str, str, str]]
WORDS = "From 100 % of the peak to the MFU; orange: lost, green: counted though not computed."
SIMULATED = "A percentage behind a change is the MFU of a simulation with it."


def losses(why: Mapping[str, Any], scene: Scene | None) -> Section | None:
    """The waterfall that `simgpt why` found, or else that of the step as it is simulated again."""
    record = why.get("mfu_waterfall")
    if record is None and scene is not None:
        record = mfu_waterfall(scene.prediction, scene.machine, scene.placement).as_dict()
    if record is None:
        return None
    rows = waterfall_rows(record)
    table = PageTable(
        ("MFU waterfall", "what may win it back (MFU with it)", "change", "left"),
        rows,
        left=2,
        caption=SIMULATED,
    )
    drawing = Drawing("mfu", waterfall_figure(rows), WORDS, 760)
    return Section("mfu", "Where the peak goes", (), [drawing], [table], short="MFU")


def waterfall_figure(rows: Rows) -> Figure:
    """A bar for each row, from what is left before it to what is left after it."""
    figure, (axes,) = canvas(7.6, 1.0 + 0.34 * len(rows))
    before = 0.0
    for number, (_, _, change, text) in enumerate(rows):
        left = float(text.removesuffix(" %"))
        start = before if change else 0.0
        colour = BLUE if not change else RED if left < before else GREEN
        axes.barh(number, left - start, left=start, height=0.66, color=colour)
        axes.text(max(start, left) + 1, number, change or text, va="center", fontsize=8.5)
        before = left
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel("per cent of the peak")
    axes.grid(axis="x")
    return figure
