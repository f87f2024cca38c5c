"""Tables of a checkout's CSV files, as far as recipes use pandas: rows are chosen by what their
cells are, and given as dictionaries.

Sources: pandas 2.2, API reference, read_csv, DataFrame.replace, DataFrame.to_dict, Boolean
indexing. A cell without text is numpy's nan here, and one that reads as a number is one.
"""

from __future__ import annotations

import csv
import re
from typing import Any

from simgpt.frameworks.recipe_code.checkout import Checkout
from simgpt.frameworks.recipe_code.values import (
    Builtin,
    Column,
    External,
    FilePath,
    Place,
    RecipeError,
    Table,
    unknown,
)
from topologies.files.reading import UserFile

NAN = External("numpy.nan")
MOST_ROWS = 5000
_FILE = UserFile("table of a checkout", RecipeError)
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_REAL = re.compile(r"[+-]?\d{1,18}(\.\d{0,18})?([eE][+-]?\d{1,2})?")


def rows_of(checkout: Checkout, path: str) -> list[dict[str, Any]] | None:
    """The rows of a CSV file of the checkout by its columns' names; None where it has no such
    file."""
    file = checkout.file(path)
    if file is None:
        return None
    found = [dict(row) for row in csv.DictReader(_FILE.lines(file)) if None not in row]
    if len(found) > MOST_ROWS:
        raise RecipeError(f"{path} has more than {MOST_ROWS:,} rows")
    return [{name: cell_of(text) for name, text in row.items()} for row in found]


def cell_of(text: str | None) -> Any:
    """What a cell's text means.

    >>> cell_of("8.0"), cell_of("3"), cell_of("bf16")
    (8.0, 3, 'bf16')
    """
    text = (text or "").strip()
    if not text:
        return NAN
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _REAL.fullmatch(text) else text


def read_table(checkout: Checkout, given: list[Any], place: Place) -> Any:
    """`pandas.read_csv` of a path."""
    path = given[0].text if given and isinstance(given[0], FilePath) else given[:1]
    path = path[0] if isinstance(path, list) and path else path
    rows = rows_of(checkout, path) if isinstance(path, str) else None
    return unknown("a table", place) if rows is None else Table(rows)


def column_of(table: Table, name: str) -> Column:
    """The cells of a column, nan where a row has none."""
    return Column([row.get(name, NAN) for row in table.rows])


def chosen(table: Table, mask: Column) -> Table:
    """The rows for which a column has True."""
    return Table([row for row, is_in in zip(table.rows, mask.cells, strict=True) if is_in is True])


def both(one: Any, other: Any) -> Column | None:
    """`&` of two masks, or of a mask and a truth value, in their order."""
    left, right = (each.cells if isinstance(each, Column) else each for each in (one, other))
    if isinstance(left, list) and isinstance(right, list):
        return Column([a is True and b is True for a, b in zip(left, right, strict=True)])
    cells, value = (left, right) if isinstance(left, list) else (right, left)
    return Column([cell is True and value for cell in cells]) if isinstance(value, bool) else None


def method_of_table(table: Table, name: str) -> Any:
    """A method or attribute of a table; None where none is known."""
    if name == "empty":
        return not table.rows
    if name == "columns":
        return list(table.rows[0]) if table.rows else []
    if name == "replace":
        return Builtin(name, lambda place, given, named: _replaced(table, given, place))
    if name == "to_dict":
        return Builtin(name, lambda place, given, named: _records(table, given, named, place))
    return None


def _replaced(table: Table, given: list[Any], place: Place) -> Any:
    if len(given) != 1 or not isinstance(given[0], dict):
        return unknown("a table whose cells are replaced", place)
    by = given[0]
    return Table([{name: by.get(cell, cell) for name, cell in r.items()} for r in table.rows])


def _records(table: Table, given: list[Any], named: dict[str, Any], place: Place) -> Any:
    if [*given, *named.values()] != ["records"]:
        return unknown("a table as a dictionary", place)
    return [dict(row) for row in table.rows]
