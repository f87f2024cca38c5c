"""Values of annotated types from the plain tables and lists of a file that was checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_origin

from topologies.files.keys import MOST_COUNT, fields_of


def structured(hint: Any, value: Any) -> Any:
    """A value as its type wants it: numbers, text, tuples and tables of them, and dataclasses whose
    fields carry a `Key`.

    What does not fit raises a TypeError, ValueError or KeyError that does not say where it stands.

    >>> structured(tuple[tuple[int, float], ...], [[1, 2], [3, 4]])
    ((1, 2.0), (3, 4.0))
    """
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int:
        return whole(value)
    if hint is float or hint is str:
        return hint(value)
    if dataclasses.is_dataclass(hint):
        return _built(hint, value)
    if isinstance(hint, UnionType):
        if isinstance(value, hint):
            return value
        (other,) = (option for option in get_args(hint) if option is not type(None))
        return structured(other, value)
    if get_origin(hint) is dict:
        return {str(name): structured(get_args(hint)[1], each) for name, each in value.items()}
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), value)
    raise TypeError(f"{hint} is not a type of a field")


def whole(value: Any) -> int:
    """A whole number that counts what a machine may have."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MOST_COUNT:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _tuple(hints: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    each = [hints[0]] * len(value) if hints[-1] is ... else hints
    return tuple(structured(hint, item) for hint, item in zip(each, value, strict=True))


def _built(cls: Any, table: Mapping[str, Any]) -> Any:
    known = {field.key.name: field for field in fields_of(cls)}
    given = {known[name].attribute: structured(known[name].type, at) for name, at in table.items()}
    return cls(**given)
