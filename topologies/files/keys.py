"""How the fields of a machine's dataclasses are named and measured in its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from topologies.files.units import Unit
from topologies.records import record
from topologies.session import session_cached

MOST_COUNT = 1_000_000


@record(slots=False)
class Key:
    """Annotates a field that a machine file knows as `name`, written in `unit`.

    `zero` allows the value 0, as seconds and watts always do; `names` lists what may stand
    under the key when it is a table of values by name. A `share` is a part of a whole: of what is
    reached above 0 and at most 1, of what others take (`zero`) below 1, so that some is left. A
    whole number is at most `most`, since memory and time are spent on what it counts.
    """

    name: str
    unit: Unit | None = None
    zero: bool = False
    names: tuple[str, ...] = ()
    share: bool = False
    most: int = MOST_COUNT


@record(slots=False)
class KeyedField:
    """A dataclass field with its key: its attribute, type, and whether a file must give it."""

    attribute: str
    type: Any
    required: bool
    key: Key


@session_cached(64)
def fields_of(cls: type) -> tuple[KeyedField, ...]:
    """The fields of a dataclass that carry a `Key`, in order."""
    return tuple(_keyed_fields(cls))


def _keyed_fields(cls: type) -> Iterator[KeyedField]:
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            plain, key = get_args(hint)[:2]
            required = field.default is dataclasses.MISSING
            yield KeyedField(field.name, plain, required, key)
