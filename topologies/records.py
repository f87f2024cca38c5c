"""Records: frozen dataclasses that are made quickly, both the class and its instances.

A command imports some 150 such classes before it does anything. The standard decorator compiles
five to seven methods for each of them, half a millisecond a class; a record compiles `__init__`
alone and compares, hashes and prints by functions that all share. Assignment to a field is
forbidden by the type checker, not at run time, where that makes an instance take three times as
long, and programs have thousands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, dataclass_transform, overload

Record = TypeVar("Record")


class Limits(NamedTuple):
    """The least and the most of a number, or the words of which a field has one."""

    least: float = 0
    most: float = 0
    words: tuple[str, ...] = ()


def bounded(*, default: Any = MISSING, least: float = 0, most: float) -> Any:
    """A field with a number from `least` to `most`, which its record's owner checks.

    >>> @record
    ... class Point:
    ...     x: int = bounded(default=0, most=9)
    >>> Point(), limits(Point)["x"].most
    (Point(x=0), 9)
    """
    return field(default=default, metadata={"limits": Limits(least, most)})


def one_of(words: tuple[str, ...], *, default: str) -> Any:
    """A field with one of some words."""
    return field(default=default, metadata={"limits": Limits(words=words)})


@overload
def record(kind: type[Record], /) -> type[Record]: ...


@overload
def record(
    *, slots: bool = True, kw_only: bool = False
) -> Callable[[type[Record]], type[Record]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field, bounded, one_of))
def record(
    kind: type[Record] | None = None, /, *, slots: bool = True, kw_only: bool = False
) -> Any:
    """Decorate a class as a record; without `slots` it may have cached properties.

    >>> @record
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(1, 0), Point(1) == Point(2), len({Point(1), Point(1)})
    (Point(x=1, y=0), True, False, 1)
    """

    def made(kind: type[Record]) -> type[Record]:
        found = dataclass(slots=slots, kw_only=kw_only, repr=False, eq=False)(kind)
        _compare(found)
        return found

    return made if kind is None else made(kind)


def _compare(kind: Any) -> None:
    """Give a dataclass what compares, hashes and prints its instances, unless it has its own."""
    every = fields(kind)
    compared = _values([each.name for each in every if each.compare])
    hashed = _values(
        [each.name for each in every if (each.compare if each.hash is None else each.hash)]
    )
    shown = [each.name for each in every if each.repr]

    def equals(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def number(self: Any) -> int:
        return hash(hashed(self))

    def printed(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({values})"

    for name, method in (("__eq__", equals), ("__hash__", number), ("__repr__", printed)):
        if name not in vars(kind) or vars(kind)[name] is None:
            setattr(kind, name, method)


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of some fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


def limits(kind: Any) -> dict[str, Limits]:
    """What the fields of a record may be, of those that say it."""
    return {each.name: each.metadata["limits"] for each in fields(kind) if each.metadata}
