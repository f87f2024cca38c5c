"""How far a scaling study keeps its parallel efficiency, in words and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from topologies.records import record
from validation.report.figures.scaling_figures import MOST_LINES, OVER_LINES, device_axis, shorter
from validation.report.figures.style import INK, LINES, canvas
from validation.report.findings import Ladder
from validation.report.read_prediction import Answer
from validation.report.words import several

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEPT = 0.8
KEPT_WORDS = "80 %"


@record(slots=False)
class Reach:
    """The last rung of a ladder up to which all keep KEPT, and the first that does not, if any."""

    ladder: Ladder
    last: Answer
    beyond: Answer | None

    @property
    def sentence(self) -> str:
        """How far it scales."""
        name = f" ({self.ladder.name})" if self.ladder.name else ""
        devices = several(self.last.devices, "device")
        upto = f"It keeps at least {KEPT_WORDS} of its parallel efficiency up to {devices}"
        if self.beyond is None:
            return f"{upto} ({_percent(self.last)}), where the study ends{name}."
        return (
            f"{upto} ({_percent(self.last)}), and {_percent(self.beyond)} on "
            f"{self.beyond.devices:,}{name}."
        )


def reach_of(ladders: Sequence[Ladder]) -> Reach | None:
    """The reach of the ladder that scales furthest; rungs without an efficiency are passed by."""
    found = [reach for reach in map(_reach, ladders) if reach is not None]
    return max(found, key=lambda each: (each.last.devices, each.last.efficiency), default=None)


def _reach(ladder: Ladder) -> Reach | None:
    known = [rung for rung in ladder.rungs if rung.efficiency is not None and rung.fits]
    if len(known) < 2:
        return None
    for number, rung in enumerate(known):
        if number and (rung.efficiency or 0.0) < KEPT:
            return Reach(ladder, known[number - 1], rung)
    return Reach(ladder, known[-1], None)


def _percent(answer: Answer) -> str:
    return f"{100 * (answer.efficiency or 0.0):.1f} %"


def efficiency(ladders: Mapping[str, Ladder]) -> Figure:
    """Efficiency over devices, a line for each ladder by its name, and one at KEPT."""
    figure, (axes,) = canvas(6.4, 3.7)
    devices: set[int] = set()
    top = 1.0
    for (name, ladder), look in zip(list(ladders.items())[:MOST_LINES], LINES, strict=False):
        colour, marker, dash = look
        known = [rung for rung in ladder.rungs if rung.efficiency is not None]
        values = [100 * (rung.efficiency or 0.0) for rung in known]
        axes.plot([rung.devices for rung in known], values, color=colour, marker=marker,
                  linestyle=dash, markersize=5, label=shorter(name))  # fmt: skip
        devices |= {rung.devices for rung in known}
        top = max([top, *(value / 100 for value in values)])
    axes.axhline(100 * KEPT, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label=KEPT_WORDS)
    axes.set_ylim(0, 108 * top)
    axes.set_ylabel("parallel efficiency, %")
    axes.set_title("Model FLOP/s per device over the first rung's")
    device_axis(axes, sorted(devices))
    axes.legend(fontsize=8.5, loc="best", **OVER_LINES)
    return figure
