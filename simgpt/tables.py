"""Tables and numbers as people read them in a terminal."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Literal

from topologies.files.printable import printable
from topologies.files.units import Unit, format_quantity

WIDTH = 100
GAP = 3
COUNTS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    first: int = 0,
    remarks: bool = False,
) -> str:
    """A plain table; the first `left` columns are text, the others numbers, but for the last one if
    it has `remarks`.

    Without `columns` there is no header. The first column is at least `first` characters wide, so
    that tables one below the other line up. Text that is too wide goes on in the next line, after a
    blank or a comma that is in no number.
    """
    from rich.console import Console
    from rich.table import Table

    header = [list(columns)] if columns else []
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = _widths([*header, *rows], left)
    text_at = len(widths) - 1 if remarks else 0
    shown = Table(box=None, show_header=bool(columns), pad_edge=False, padding=(0, GAP, 0, 0))
    for index, width in enumerate(widths):
        title = columns[index] if columns else ""
        least = max(width, first) if index == 0 else width
        side: Literal["left", "right"] = "left" if index < left or index == text_at else "right"
        shown.add_column(title, justify=side, min_width=least, no_wrap=True)
    for row in rows:
        shown.add_row(*(_broken(cell, width) for cell, width in zip(row, widths, strict=True)))
    sink = io.StringIO()
    Console(file=sink, width=1000, color_system=None, highlight=False, markup=False).print(shown)
    lines = [line.rstrip() for line in sink.getvalue().splitlines()]
    if columns:
        lines.insert(1, "─" * (max([widths[0], first]) + sum(widths[1:]) + GAP * (len(widths) - 1)))
    return "\n".join(lines)


def paragraph(text: str, *, indent: str = "") -> str:
    """Text in lines that fit, all but the first of them indented."""
    return _broken(text, width() - len(indent)).replace("\n", "\n" + indent)


def width() -> int:
    """How wide text may be: as the terminal, within reason."""
    if sys.stdout is None or not sys.stdout.isatty():
        return WIDTH
    return min(max(shutil.get_terminal_size().columns, 80), 160)


def _widths(rows: Sequence[Sequence[str]], left: int) -> list[int]:
    """How wide each column is: what it holds, but wide text gives way until the table fits."""
    if not rows:
        return []
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [_longest(column) for column in columns]
    room = width() - GAP * (len(widths) - 1)
    while sum(widths) > room:
        loose = [i for i in range(min(left, len(widths))) if widths[i] > words[i]]
        if not loose:
            break
        widths[max(loose, key=lambda i: widths[i])] -= 1
    return widths


def _longest(cells: Sequence[str]) -> int:
    return max(len(word.rstrip()) for cell in cells for word in _words(cell))


def _words(text: str) -> list[str]:
    """What a line may end with: words and what follows them, a plan's keys one by one.

    >>> _words("on 32,768 devices, tp=1,y=2")
    ['on ', '32,768 ', 'devices, ', 'tp=1,', 'y=2', '']
    """
    return re.findall(r"(?:[^ ,]|(?<=\d),(?=\d))*[ ,]*", text)


def _broken(text: str, width: int) -> str:
    """The text in lines of at most `width`, broken after blanks and commas, or where it must."""
    lines = [""]
    for word in _words(text):
        if len(lines[-1]) + len(word.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += word
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(line.rstrip() for line in lines)


def seconds(value: float) -> str:
    """A duration in the unit that suits it, with three digits that count.

    >>> seconds(0.044), seconds(11.94), seconds(86400)
    ('44.0 ms', '11.9 s', '86,400 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= 0.9995 * size or unit == "us":
            return f"{_three(value / size)} {unit}"
    raise AssertionError("unreachable")


def between(low_s: float, high_s: float) -> str:
    """Two durations, the unit said once where they share it.

    >>> between(25.0, 38.12), between(0.9, 1.1)
    ('25.0 to 38.1 s', '900 ms to 1.10 s')
    """
    low, high = seconds(low_s), seconds(high_s)
    same = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same else low} to {high}"


def percent(share: float, *, sign: bool = False) -> str:
    """A share of one as a percentage; with `sign` as a difference."""
    return f"{100 * share:+.1f} %" if sign else f"{100 * share:.1f} %"


def gib(nbytes: float) -> str:
    """Bytes in GiB, or MiB below a tenth of one."""
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**30 / 10 else f"{nbytes / 2**20:.2f} MiB"


def rate(value: float, unit: Unit = "FLOP/s", *, digits: int = 3) -> str:
    """A rate with the prefix that fits."""
    return format_quantity(value, unit, digits=digits)


def hours(seconds: float) -> str:
    """Seconds as hours, with three digits that count.

    >>> hours(84.1), hours(247_836), hours(36e6)
    ('0.0234', '68.8', '10,000')
    """
    return amount(seconds / 3600)


def amount(value: float) -> str:
    """A number with three digits that count, if it is not larger.

    >>> amount(0.0234), amount(5.0), amount(12_345.6)
    ('0.0234', '5.00', '12,346')
    """
    return f"{value:#.3g}" if value < 1 else _three(value)


def count(number: int) -> str:
    """How many, as model sizes are spoken of.

    >>> count(34_200), count(5_047_558_144), count(1_008_000_000_000)
    ('34.2 k', '5.05 B', '1.01 T')
    """
    for letter, size in COUNTS:
        if number >= size:
            return f"{_three(number / size)} {letter}"
    return str(number)


def several(number: int, what: str) -> str:
    """A number of things: `1 step`, `1,024 steps`, `2 micro-batches`."""
    plural = "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"


def _three(value: float) -> str:
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")
