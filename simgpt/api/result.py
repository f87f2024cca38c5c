"""What every answer has in Python: its JSON, its text, a short form, a table and a data frame."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpt.api.errors import MissingLibraryError
from simgpt.question import Question
from simgpt.question_rows import QuestionError

if TYPE_CHECKING:
    import pandas

    from simgpt.api.asking import Answered

SHOWN = 20  # rows of a table in a notebook
Row = dict[str, Any]
Cells = Sequence[Sequence[str]]


class Result:
    """What a command answered. `str()` of it is the text that the command prints."""

    def __init__(self, asked: Answered) -> None:
        self._asked = asked
        self._record = asked.record

    @property
    def command(self) -> str:
        """The command line that asks the same, ready for a shell."""
        return shlex.join(self._asked.command)

    @property
    def question(self) -> Question:
        """The question that was asked, to ask it of another function or with a change; a
        SimgptError where the command is asked none."""
        if self._asked.question is None:
            raise QuestionError(f"{self.command} is asked no question about a step")
        return self._asked.question

    @property
    def notes(self) -> tuple[str, ...]:
        """What the command says beside its answer; each of them was a warning too."""
        return tuple(self._asked.notes)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that were written."""
        return tuple(self._asked.paths)

    @property
    def status(self) -> int:
        """The exit status of the command: 0, or 3 where nothing fits into memory, 4 where a
        comparison is above its tolerance, 1 where the simulator failed at a point."""
        return self._asked.status

    def to_dict(self) -> dict[str, Any]:
        """The answer as the command prints it with `--json`; the caller may change it."""
        return copy.deepcopy(dict(self._record))

    def rows(self) -> list[Row]:
        """The answer as rows of plain values, one of them unless a subclass says otherwise; a key
        within a table is written with a dot, as in `memory.peak_bytes`."""
        return [flat(self._record)]

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a data frame of pandas, which has to be installed."""
        return frame_of(self.rows())

    def __str__(self) -> str:
        return self._asked.text

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._short()}>"

    def _repr_html_(self) -> str:
        """The answer in a notebook."""
        columns, cells = self._table()
        notes = "".join(f"<p>{escape(text)}</p>" for text in (*self._remarks(), *self.notes))
        return f"<p><b>{escape(self._short())}</b></p>{html_table(columns, cells)}{notes}"

    def _remarks(self) -> Sequence[str]:
        """What a notebook says below the table."""
        return ()

    def _short(self) -> str:
        return self.command

    def _table(self) -> tuple[Sequence[str], Cells]:
        """Columns and cells of the table in a notebook."""
        rows = self.rows()
        return table_of(rows, list(rows[0]) if rows else [])


def flat(record: Mapping[str, Any], within: str = "") -> Row:
    """The values of a record and of the tables within it, by dotted keys.

    >>> flat({"step_s": 2.0, "memory": {"fits": True}})
    {'step_s': 2.0, 'memory.fits': True}
    """
    return dict(_items(record, within))


def _items(record: Mapping[str, Any], within: str) -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _items(value, f"{within}{key}.")
        else:
            yield f"{within}{key}", value


def frame_of(rows: Sequence[Row]) -> pandas.DataFrame:
    """A data frame of these rows."""
    try:
        import pandas
    except ImportError:
        raise MissingLibraryError(
            "to_frame needs pandas, which is not installed: pip install pandas; rows() and "
            "to_dict() do without it"
        ) from None
    return pandas.DataFrame(list(rows))


def table_of(rows: Sequence[Row], columns: Sequence[str]) -> tuple[Sequence[str], Cells]:
    """Columns and cells of the first rows, and in a last row how many more there are."""
    cells = [[cell_of(row.get(column)) for column in columns] for row in rows[:SHOWN]]
    if len(rows) > SHOWN:
        cells.append([f"{len(rows) - SHOWN:,} more rows", *[""] * (len(columns) - 1)])
    return columns, cells


def cell_of(value: object) -> str:
    """A value as a table shows it.

    >>> cell_of(0.30812345), cell_of(None), cell_of(8192)
    ('0.3081', '-', '8,192')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def html_table(columns: Sequence[str], cells: Cells) -> str:
    """A table of text that stands in it as it is, whatever it contains."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells
    )
    return (
        f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
    )
