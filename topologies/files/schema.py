"""Which keys a machine file may have, and the check of each value against its key."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any, get_args, get_origin

from topologies.errors import MachineError, UnitError
from topologies.files.facts import Fact
from topologies.files.keys import fields_of
from topologies.files.printable import printable, shown
from topologies.files.structured import structured
from topologies.files.units import Unit, quantity
from topologies.records import record

LEAST_NUMBER, MOST_NUMBER = 1e-30, 1e30  # of any quantity in SI that is not 0


@record(slots=False)
class Leaf:
    """One key of the file: its type and unit, its range, and whether it may be left out.

    `inside` is the innermost table around it that may be left out as a whole.
    """

    key: str
    type: Any
    unit: Unit | None
    positive: bool
    required: bool
    inside: str
    share: bool
    most: int

    @property
    def range(self) -> str:
        """Where its value lies, if that is a number."""
        if self.share:
            return "above 0 and at most 1" if self.positive else "from 0 to below 1"
        return "above 0" if self.positive else "at least 0"

    def holds(self, number: float) -> bool:
        """Whether a number is in that range."""
        below = number < 1 or (self.positive and number == 1)
        return (number > 0 or (number == 0 and not self.positive)) and (below or not self.share)


def leaves(cls: type, prefix: str = "", inside: str = "") -> Iterator[Leaf]:
    """Every key that a file may have for a dataclass whose fields carry a `Key`."""
    for field in fields_of(cls):
        key = field.key
        path = prefix + key.name
        inner = _dataclass_in(field.type)
        positive = not (key.zero or key.unit in ("s", "W"))
        if inner is not None:
            yield from leaves(inner, f"{path}.", inside if field.required else path)
        elif key.names:
            for name in key.names:
                own = f"{path}.{name}"
                yield Leaf(own, float, key.unit, True, False, inside, key.share, key.most)
        else:
            required, share = field.required, key.share
            yield Leaf(path, field.type, key.unit, positive, required, inside, share, key.most)


def _dataclass_in(hint: Any) -> type | None:
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    found = [option for option in options if dataclasses.is_dataclass(option)]
    return found[0] if found else None  # type: ignore[return-value]


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that looks most like the given one, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; nearest: {close[0]}" if close else ""


def nearest_key(key: str, known: Iterable[str]) -> str:
    """A hint at the known key that looks most like this one; of a table, at its keys, that of the
    dtype of training first."""
    inside = [each for each in known if each.startswith(f"{key}.")]
    inside.sort(key=lambda each: not each.endswith(".bf16"))
    return f"; it has {', '.join(inside[:4])}" if inside else nearest(key, known)


def checked(facts: Collection[Fact], known: dict[str, Leaf], origin: str) -> dict[str, Any]:
    """The facts' values in SI by key; refuses unknown, missing and ill-typed ones."""
    given = {fact.key for fact in facts}
    tables = {key[:at] for key in given for at, letter in enumerate(key) if letter == "."}
    for fact in facts:
        if fact.key not in known:
            raise MachineError(
                f"{origin}: {fact.key} is not a key of a machine{nearest(fact.key, known)}"
            )
    for leaf in known.values():
        wanted = not leaf.inside or leaf.inside in tables
        if leaf.required and wanted and leaf.key not in given:
            raise MachineError(f"{origin}: {leaf.key} is missing; it must be {_wish(leaf)}")
    return {fact.key: value_of(known[fact.key], fact.value, origin) for fact in facts}


def value_of(leaf: Leaf, value: Any, origin: str) -> Any:
    """One value, checked against its key and turned to SI."""
    try:
        result = quantity(value, leaf.unit) if leaf.unit else _plain(leaf, value, origin)
    except UnitError as error:
        raise UnitError(f"{origin}: {leaf.key} = {error}") from None
    if isinstance(result, float | int) and leaf.type is not bool and not leaf.holds(result):
        hint = f"; write {result / 100:g} for {result:g} %" if leaf.share and result > 1 else ""
        raise MachineError(f"{origin}: {leaf.key} = {value} must be {leaf.range}{hint}")
    if leaf.type is int and result > leaf.most:
        raise MachineError(f"{origin}: {leaf.key} = {value} must be at most {leaf.most:,}")
    if leaf.unit and result and not LEAST_NUMBER < result < MOST_NUMBER:
        wanted = f"between {LEAST_NUMBER:g} and {MOST_NUMBER:g} {leaf.unit}"
        raise MachineError(f"{origin}: {leaf.key} = {value} must be {wanted}")
    return result


def _plain(leaf: Leaf, value: Any, origin: str) -> Any:
    if leaf.type is str and isinstance(value, str):
        return printable(value) if leaf.key == "description" else shown(value)
    if leaf.type is bool and isinstance(value, bool):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if leaf.type is float and number and abs(value) <= MOST_NUMBER:
        return float(value)
    if leaf.type is int and number and abs(value) <= MOST_NUMBER and value == int(value):
        return int(value)
    if get_origin(leaf.type) is tuple and isinstance(value, tuple):
        try:
            return structured(leaf.type, value)
        except (ValueError, TypeError, OverflowError):
            pass
    given = list(value) if isinstance(value, tuple) else value
    raise MachineError(f"{origin}: {leaf.key} = {given!r} does not fit; it must be {_wish(leaf)}")


def _wish(leaf: Leaf) -> str:
    if leaf.unit:
        return f"text with a unit ({leaf.unit})"
    if leaf.share:
        return f"a number {leaf.range}, such as 0.1 for 10 %"
    if get_origin(leaf.type) is tuple and "float" in str(leaf.type):
        return "a list of [devices, rate]"
    words = {bool: "true or false", str: "text", int: "a whole number"}
    words |= {float: "a number such as 0.1"}
    return words.get(leaf.type, "a list of whole numbers, or of [device, device, count]")
