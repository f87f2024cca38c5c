"""Both branches of a condition whose value is not known: each is evaluated from the same state,
and what they leave different becomes unknown.

Containers (names of a scope, attributes of an object, lists, dictionaries) are copied before they
are first written; after the first way they are put back, after the second the two are joined.
Cost: one copy of each container that a way writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simgpt.frameworks.recipe_code.values import Thing

Container = dict[Any, Any] | list[Any] | set[Any]
Join = Callable[[str, Any, Any], Any]
ABSENT = object()


class Journal:
    """Copies of what was written since each open mark."""

    def __init__(self) -> None:
        self._marks: list[list[tuple[Container, Container]]] = []

    def before_write(self, container: Container) -> None:
        """Keep what a container holds, for every mark that has no copy of it."""
        for mark in self._marks:
            if copy_of(container, mark) is None:
                mark.append((container, container.copy()))

    def settle(self, container: dict[Any, Any], key: Any, value: Any) -> None:
        """Set an entry that was so all along and is found out now: in all copies too."""
        container[key] = value
        for mark in self._marks:
            if isinstance(copy := copy_of(container, mark), dict):
                copy[key] = value

    def begin(self) -> None:
        """Set a mark."""
        self._marks.append([])

    def undo(self) -> list[tuple[Container, Container]]:
        """Put back what was written since the last mark, and give what it was written to."""
        mark = self._marks.pop()
        after = [(container, container.copy()) for container, _ in mark]
        for container, copy in mark:
            restore(container, copy)
        return after

    def close(self) -> list[tuple[Container, Container]]:
        """Keep what was written since the last mark, and give what it was before."""
        return self._marks.pop()


def copy_of(container: Container, copies: list[tuple[Container, Container]]) -> Container | None:
    """The copy that stands beside a container in a list, which is searched by identity."""
    return next((copy for each, copy in copies if each is container), None)


def restore(container: Container, content: Container) -> None:
    """Make a container hold what another one does."""
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)


def joined(one: Container, other: Container, join: Join) -> Container:
    """What two ways leave in a container: entries that are equal, and `join` of the others."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one if same(one, other) else [join("an element", one, other)]
    found = {}
    for key in (*one, *(key for key in other if key not in one)):
        first, second = one.get(key, ABSENT), other.get(key, ABSENT)
        found[key] = first if same(first, second) else join(str(key), first, second)
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two values are one, or equal literals."""
    if one is other:
        return True
    if isinstance(one, Thing) or isinstance(other, Thing) or type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)
