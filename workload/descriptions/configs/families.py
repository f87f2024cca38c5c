"""The rows of `families.toml`: what is known of each family of a `config.json` of Hugging Face.

A row says what differs from the row it is `like`, and `cases` what differs where a config's keys
have some values; both are joined here, so that all else reads one plain table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from topologies.files.reading import shipped_toml

Table = Mapping[str, Any]
JOINED = ("fixed", "keys", "absent", "only", "equal", "said", "lacks")  # key by key
PARTS = (*JOINED, "biases", "window", "experts", "activation")  # empty where a row has none
NULL = "null"  # which TOML has no word for


@cache
def tables() -> Table:
    """The rows of all families and how configs are read."""
    rows = shipped_toml("workload", "descriptions/families.toml")
    return {**shipped_toml("workload", "descriptions/hugging_face.toml"), **rows}


def row_of(families: Mapping[str, Table], family: str) -> dict[str, Any]:
    """A family's row, joined with that of the family it is like."""
    row = families[family]
    if "like" not in row:
        return {part: {} for part in PARTS} | {"cases": [], "ignored": []} | dict(row)
    return joined(row_of(families, row["like"]), row)


def row_for(families: Mapping[str, Table], family: str, document: Table) -> dict[str, Any]:
    """A family's row for one config: with the cases that hold of it."""
    row = row_of(families, family)
    absent = row["absent"]
    for case in row["cases"]:
        given = {key: value_of(document, key, absent.get(key)) for key in case["if"]}
        if all(is_among(given[key], values) for key, values in case["if"].items()):
            row = joined(row, {part: own for part, own in case.items() if part != "if"})
    return row


def joined(base: Table, own: Table) -> dict[str, Any]:
    """A row with what another one says over it."""
    found = {**base, **own}
    for part in set(JOINED) & set(own):
        both = {**base[part], **own[part]}
        none: tuple[Any, ...] = ({},) if part == "absent" else ([], {}, "")
        gone = [key for key, value in own[part].items() if value in none]
        found[part] = {key: value for key, value in both.items() if key not in gone}
    return found


def value_of(document: Table, key: str, absent: Any = None) -> Any:
    """What a config says of a key, "a.b" being one of the table a; `absent` where it has none."""
    found: Any = document
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return absent
        found = found[part]
    return found


def is_among(value: Any, values: list[Any]) -> bool:
    """Whether a config's value is one of those of a row, of which "null" is null; 1 is not true."""
    same = [
        each
        for each in values
        if each == value and isinstance(each, bool) == isinstance(value, bool)
    ]
    return bool(same) or (value is None and NULL in values)
