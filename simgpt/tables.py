"""Tables and numbers as people read them in a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

WIDTH = 100


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", left: int = 1
) -> str:
    """A plain table; the first `left` columns are text, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    sink = io.StringIO()
    console = Console(file=sink, width=WIDTH, color_system=None, highlight=False, markup=False)
    console.print(shown)
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines())


def seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= size or unit == "us":
            return f"{value / size:.3g} {unit}"
    raise AssertionError("unreachable")


def percent(share: float) -> str:
    """A share of one as a percentage."""
    return f"{100 * share:.1f} %"


def gib(nbytes: float) -> str:
    """Bytes in GiB, or MiB below a tenth of one."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 / 10 else f"{nbytes / 2**20:.2f} MiB"
