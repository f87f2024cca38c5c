"""Which keys a machine file may have, and the check of each value against its key."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from cattrs import BaseValidationError, Converter

from topologies.document import Fact
from topologies.errors import MachineError, UnitError
from topologies.keys import keyed_fields
from topologies.units import Unit, quantity


def _whole(value: Any, _: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


_CONVERTER = Converter()
_CONVERTER.register_structure_hook(int, _whole)


@dataclass(frozen=True)
class Leaf:
    """One key of the file: its type and unit, and whether it may be left out.

    `inside` is the innermost table around it that may be left out as a whole.
    """

    key: str
    type: Any
    unit: Unit | None
    positive: bool
    required: bool
    inside: str


def leaves(cls: type, prefix: str = "", inside: str = "") -> Iterator[Leaf]:
    """Every key that a file may have for a dataclass whose fields carry a `Key`."""
    for field in keyed_fields(cls):
        key = field.key
        path = prefix + key.name
        inner = _dataclass_in(field.type)
        positive = not (key.zero or key.unit in ("s", "W"))
        if inner is not None:
            yield from leaves(inner, f"{path}.", inside if field.required else path)
        elif key.names:
            for name in key.names:
                yield Leaf(f"{path}.{name}", float, key.unit, True, False, inside)
        else:
            yield Leaf(path, field.type, key.unit, positive, field.required, inside)


def _dataclass_in(hint: Any) -> type | None:
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    found = [option for option in options if dataclasses.is_dataclass(option)]
    return found[0] if found else None  # type: ignore[return-value]


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that looks most like the given one, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; nearest: {close[0]}" if close else ""


def checked(facts: Collection[Fact], known: dict[str, Leaf], origin: str) -> dict[str, Any]:
    """The facts' values in SI by key; refuses unknown, missing and ill-typed ones."""
    given = {fact.key for fact in facts}
    for fact in facts:
        if fact.key not in known:
            raise MachineError(
                f"{origin}: {fact.key} is not a key of a machine{nearest(fact.key, known)}"
            )
    for leaf in known.values():
        wanted = not leaf.inside or any(key.startswith(f"{leaf.inside}.") for key in given)
        if leaf.required and wanted and leaf.key not in given:
            raise MachineError(f"{origin}: {leaf.key} is missing; it wants {_wish(leaf)}")
    return {fact.key: value_of(known[fact.key], fact.value, origin) for fact in facts}


def value_of(leaf: Leaf, value: Any, origin: str) -> Any:
    """One value, checked against its key and turned to SI."""
    try:
        result = quantity(value, leaf.unit) if leaf.unit else _plain(leaf, value, origin)
    except UnitError as error:
        raise UnitError(f"{origin}: {leaf.key} = {error}") from None
    if isinstance(result, float | int) and (result < 0 or (leaf.positive and result == 0)):
        raise MachineError(
            f"{origin}: {leaf.key} = {value} must be {'above' if leaf.positive else 'at least'} 0"
        )
    return result


def _plain(leaf: Leaf, value: Any, origin: str) -> Any:
    if leaf.type is str and isinstance(value, str):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if leaf.type is float and number and math.isfinite(value):
        return float(value)
    if leaf.type is int and number and math.isfinite(value) and value == int(value):
        return int(value)
    if get_origin(leaf.type) is tuple and isinstance(value, tuple):
        try:
            return _CONVERTER.structure(value, leaf.type)
        except (BaseValidationError, ValueError, TypeError):
            pass
    shown = list(value) if isinstance(value, tuple) else value
    raise MachineError(f"{origin}: {leaf.key} = {shown!r} does not fit; it wants {_wish(leaf)}")


def _wish(leaf: Leaf) -> str:
    if leaf.unit:
        return f"text with a unit ({leaf.unit})"
    words = {str: "text", int: "a whole number", float: "a number"}
    if "float" in str(leaf.type):
        return "a list of [devices, rate]"
    return words.get(leaf.type, "a list of whole numbers, or of [device, device, count]")
