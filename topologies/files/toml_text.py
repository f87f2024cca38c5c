"""Documents as TOML, one value a line, in the order that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(document: Mapping[str, Any]) -> str:
    """The TOML that reads as a document of texts, numbers, lists and tables; nothing is None.

    Each table of the document has a header, and what is in it stands under dotted keys, so that its
    order is that of the document; values of the document itself come first, as TOML wants it. A
    table with a `value` is one line.

    >>> print(toml_text({"node": {"nics": {"count": {"value": 8, "source": "ibstat"}}}}))
    [node]
    nics.count = {value = 8, source = "ibstat"}
    """
    simple = {key: value for key, value in document.items() if not _is_table(value)}
    lines = list(_lines(simple, ""))
    for name, table in document.items():
        if _is_table(table):
            lines += ["", f"[{_key(name)}]", *_lines(table, "")]
    return "\n".join(lines).lstrip("\n")


def _lines(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in table.items():
        key = prefix + _key(name)
        if _is_table(value) and value:
            yield from _lines(value, f"{key}.")
        else:
            yield f"{key} = {_value(value)}"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and "value" not in value


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def _text(text: str) -> str:
    """A text in quotes, in which only what can be printed stands as it is."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
