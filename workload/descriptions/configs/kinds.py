"""Of which kind the values of a `config.json` are: what is of another is refused by its key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from topologies.files.printable import shown
from workload.descriptions.configs.families import value_of
from workload.errors import ModelError


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


CONSTANTS = ("Infinity", "-Infinity", "NaN")  # texts that stand for themselves
KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("text", lambda value: isinstance(value, str)),
    "list": ("a list", lambda value: isinstance(value, list)),
    "table": ("a table", lambda value: isinstance(value, dict)),
    "switch": ("true or false", lambda value: isinstance(value, bool)),
    "count": ("a whole number of at least 0", _is_count),
    "number": ("a number", _is_number),
}
_OF_PYTHON = {str: "text", list: "list", bool: "switch", int: "count", float: "number"}


def check_kinds(
    document: Mapping[str, Any],
    kinds: Mapping[str, list[str]],
    family: Mapping[str, Any],
    origin: str,
) -> None:
    """Refuse with a ModelError a value of another kind than its key has in the `family`, by what
    stands for it where it is absent, or else by `kinds`; null is of every kind."""
    known = {key: kind for kind, keys in kinds.items() for key in keys}
    known |= {key: _OF_PYTHON[type(value)] for key, value in family["absent"].items()}
    known |= dict.fromkeys(family["biases"], "switch")
    for key, kind in known.items():
        if (value := value_of(document, key)) is None:
            continue
        words, is_one = KINDS[kind]
        if not is_one(value):
            said = str(value).lower() if isinstance(value, bool) else shown(value)
            said = f'"{said}"' if isinstance(value, str) and said not in CONSTANTS else said
            raise ModelError(f"{origin}: {key} = {said} must be {words}")


def with_equal_values(document: Mapping[str, Any], row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with one number in place of a list that has it for each layer."""
    layers = next((document[key] for key in row["keys"]["layers"] if key in document), 0)
    keys = {key for keys in row["keys"].values() for key in keys}
    keys |= {row["experts"][part] for part in ("shared", "width") if part in row["experts"]}
    lists = {key: document[key] for key in keys if isinstance(document.get(key), list)}
    single = {key: each[0] for key, each in lists.items() if _is_one_number(each, layers)}
    return {**document, **single}


def _is_one_number(values: list[Any], layers: Any) -> bool:
    """Whether a list has one number for each of all layers."""
    return 0 < len(values) == layers and all(
        type(each) is int and each == values[0] for each in values
    )
