"""Documents that models generate exactly over how often they were trained on, as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from validation.report.figures.style import LINES, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE = 0.06  # of a repetition, between models whose dots would hide each other


def memorisation(record: Mapping[str, Any]) -> Figure:
    """The answer of `simgpt memorise`: the usual loss on the left, Goldfish's on the right."""
    figure, (usual, fish) = canvas(8.6, 3.7, columns=2)
    runs = record["runs"]
    k = max(run["goldfish_k"] for run in runs)
    _curves(usual, record, [run for run in runs if not run["goldfish_k"]])
    _curves(fish, record, [run for run in runs if run["goldfish_k"]])
    usual.set_title("Loss over all tokens")
    fish.set_title(f"Goldfish loss, 1 token in {k} left out")
    usual.set_ylabel(f"last {record['last_tokens']} tokens generated exactly, %")
    usual.legend(fontsize=8.5, loc="upper left")
    return figure


def _curves(axes: Axes, record: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> None:
    counts = record["repetitions"]
    for number, (run, look) in enumerate(zip(runs, LINES, strict=False)):
        colour, marker, dash = look
        side = SIDE * (number - (len(runs) - 1) / 2)
        values = [100 * run["exact"][str(count)] for count in counts]
        label = f"{run['model']} ({run['parameters'] / 1e6:.1f}M parameters)"
        axes.plot([count + side for count in counts], values, color=colour, marker=marker,
                  linestyle=dash, markersize=6, label=label, clip_on=False)  # fmt: skip
    axes.set_xticks(counts)
    axes.set_ylim(0, 104)
    axes.grid(axis="y")
    passes = record["passes"]
    axes.set_xlabel(f"times in the stream (trained on {passes} times)")
