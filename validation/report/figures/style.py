"""How figures look: colours that the colour-blind can tell apart, hatches that survive a copier."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from topologies.files.writing import figure_bytes, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Source: Okabe and Ito, Color Universal Design (2008).
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, RED, PINK = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE, INK = "#8C8C8C", "#CFCFCF", "#222222"

# By what an op is: colour, and hatch for figures that are printed in grey.
LOOKS = {
    "matmul": (BLUE, ""),
    "compute": (BLUE, ""),
    "attention": (SKY, ".."),
    "elementwise": (GREEN, "\\\\\\"),
    "optimizer": (YELLOW, "---"),
    "tp": (ORANGE, "///"),
    "x": (ORANGE, "///"),  # AxoNN's word for it
    "y": (RED, "xxx"),
    "z": (PINK, "|||"),
    "dp": (GREY, "+++"),
    "pp": (PALE, "oo"),
    "host": (GREEN, "oo"),
    "idle": ("#FFFFFF", ""),
    "other": (BLACK, ""),
}
LINES = (
    (BLUE, "o", "-"),
    (RED, "s", "--"),
    (GREEN, "^", "-."),
    (ORANGE, "D", ":"),
    (PINK, "v", "-"),
    (BLACK, "P", "--"),
    (SKY, "X", "-."),
    (GREY, "*", ":"),
)
ROLES = {
    "parameters": (BLUE, ""),
    "optimizer": (YELLOW, "---"),
    "gradients": (ORANGE, "///"),
    "activations": (GREEN, "\\\\\\"),
    "gathered": (PINK, "|||"),
    "workspace": (GREY, "+++"),
    "host": (PALE, "oo"),
}
SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    "hatch.color": "white",
    "svg.hashsalt": "simgpt",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}
Place = Literal["outside upper right", "outside lower center"]
SUFFIXES = ("png", "svg", "pdf")
DPI = 200
OUTLINE, FRACTION = re.compile(r'(?<= d=")[^"]*'), re.compile(r"-?\d+\.\d{3,}")
PAGE_COLOUR = re.compile(r"((?:fill|stroke): )(#000000|#222222|#444444|#666666|#ffffff|#dddddd)\b")
# What a page draws in colours of its own, which a dark one turns round.
PAGE_COLOURS = {
    "#000000": "--ink", "#222222": "--ink", "#444444": "--soft", "#666666": "--soft",
    "#ffffff": "--paper", "#dddddd": "--line",
}  # fmt: skip
MOST_COLUMNS = 4  # of a legend


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib with our settings, whatever the user's own are."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph ")  # of a name in another script
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def canvas(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure in inches with so many axes side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, columns, n + 1) for n in range(columns)]


def fitting_legend(
    figure: Figure, handles: Sequence[Any], names: Sequence[str], where: Place
) -> None:
    """A legend outside the axes, with as many columns as fit into the figure's width."""
    for columns in range(min(MOST_COLUMNS, len(names)), 0, -1):
        legend = figure.legend(
            handles, names, loc=where, ncols=columns, fontsize=8.5, handlelength=1.8,
            columnspacing=1.2, borderaxespad=0.3,
        )  # fmt: skip
        box = legend.get_window_extent()
        if columns == 1 or box.width <= 0.98 * figure.bbox.width:
            return
        legend.remove()


def plain_log_ticks(
    axes: Axes, which: str, unit: str = "", steps: Sequence[float] = (1.0, 2.0, 5.0)
) -> None:
    """Numbers as people write them on a logarithmic axis (`x` or `y`): 1, 2, 5, 10, 20, …, or by
    other steps within a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{_scaled(value)}{unit}"))


def _scaled(value: float) -> str:
    for letter, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * size or (value >= size and letter != "k"):
            return f"{value / size:g} {letter}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def look_of(axes: str) -> tuple[str, str]:
    """Colour and hatch of communication over some axes: those of the outermost axis."""
    named = [axis for axis in ("dp", "z", "y", "tp", "x", "pp") if axis in axes.split("+")]
    if not named and axes in LOOKS:
        return LOOKS[axes]
    return LOOKS[named[0]] if named else LOOKS["pp" if axes == "ends" else "other"]


def as_svg(figure: Figure, prefix: str) -> str:
    """The figure as an element for a page. Identifiers get a prefix, since a page has several; ink
    and paper are the page's; outlines are rounded to a hundredth of a point, for a small page."""
    text = figure_bytes(figure, "svg", metadata={"Date": None, "Creator": None}).decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href|href)="#', rf'\1="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    text = OUTLINE.sub(lambda found: _rounded(found[0]), text)
    text = PAGE_COLOUR.sub(lambda found: f"{found[1]}var({PAGE_COLOURS[found[2]]})", text)
    return re.sub(r'<svg ([^>]*?)height="[^"]*" ([^>]*?)width="[^"]*"', r"<svg \1\2", text)


def _rounded(outline: str) -> str:
    numbers = FRACTION.sub(lambda found: f"{float(found[0]):.2f}", outline)
    return " ".join(numbers.split())


def write_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """The figure as PNG, SVG and PDF in a folder."""
    paths = [folder / f"{name}.{suffix}" for suffix in SUFFIXES]
    for path in paths:
        about = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(path.suffix[1:], {})
        write_whole(path, figure_bytes(figure, path.suffix[1:], dpi=DPI, metadata=about))
    return paths
