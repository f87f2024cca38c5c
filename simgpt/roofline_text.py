"""The roofline of a step as a table, and as a figure in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpt import tables
from topologies.files.units import format_quantity

if TYPE_CHECKING:
    from simulator.explain.roofline import KindOfOp, Roofline, Roofs

COLUMNS = ("roofline", "of compute", "FLOPs", "bytes", "FLOP/byte", "reaches", "of its roof")
COUNTED = (
    "FLOPs are those of matrix products, with what several ranks compute alike, and of attention "
    "under a causal mask half the square of scores (HFU counts all of it); bytes are those of each "
    "op's operands, each once. Kinds without FLOPs are held to the memory's rate by the bytes that "
    "they move."
)


def describe(found: Roofline, stages: int) -> str:
    """The table of a roofline with what its columns count; `stages` are those of the pipeline."""
    rows = [_row(kind, found.roofs) for kind in found.kinds]
    rows.append(_row(found.step, found.roofs, share=""))
    table = tables.table(COLUMNS, rows)
    return f"{table}\n{tables.paragraph(f'({_about(found, stages)})')}"


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Draw the roofline of an answer of `simgpt why` into a file, PNG, SVG or PDF by its suffix; a
    DiskError says why it cannot be written."""
    from topologies.files.writing import figure_bytes, write_whole
    from validation.report.figures.roofline import roofline
    from validation.report.figures.style import DPI, drawing

    suffix = path.suffix.lstrip(".")
    about = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix, {})
    with drawing():
        content = figure_bytes(roofline(record), suffix, dpi=DPI, metadata=about)
    write_whole(path, content)


def _row(kind: KindOfOp, roofs: Roofs, share: str | None = None) -> tuple[str, ...]:
    intensity = kind.intensity
    bound = kind.is_memory_bound(roofs)
    by_bytes = format_quantity(kind.bytes_per_s, "bytes/s", digits=3)
    return (
        kind.name,
        tables.percent(kind.share) if share is None else share,
        tables.rate(kind.flops).removesuffix("/s") if kind.flops else "none",
        format_quantity(kind.nbytes, "bytes", digits=3) if kind.nbytes else "none",
        "-" if intensity is None else tables.amount(intensity),
        tables.rate(kind.flops_per_s) if kind.flops else by_bytes,
        f"{tables.percent(kind.share_of_roof(roofs))} {'memory' if bound else kind.dtype}",
    )


def _about(found: Roofline, stages: int) -> str:
    """Whose ops these are, the roofs, and what is counted."""
    roofs = found.roofs
    where = f" of pipeline stage {found.stage + 1} of {stages}, the busiest" if stages > 1 else ""
    sheet, reached = (
        format_quantity(each, "bytes/s", digits=4)
        for each in (roofs.memory_bytes_per_s, roofs.reached_bytes_per_s)
    )
    peaks = ", ".join(f"{tables.rate(peak, digits=4)} in {d}" for d, peak in roofs.peaks.items())
    best = roofs.best_matmul_flops_per_s
    known = f", {tables.rate(best)} by the best 16-bit matmul measured" if best else ""
    return (
        f"a device{where}, whose step is {tables.percent(found.step.share)} compute. Roofs: memory "
        f"{sheet}, of which elementwise kernels reach {reached}; {peaks}{known}. {COUNTED}"
    )
