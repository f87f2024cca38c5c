"""Methods of Python's own values that recipes use; any other is unknown."""

from __future__ import annotations

from typing import Any

from simgpt.frameworks.recipe_code.evaluation import Evaluation
from simgpt.frameworks.recipe_code.expressions import bounded, hashable_literal
from simgpt.frameworks.recipe_code.values import Builtin, Function, Place, RaisedError, is_literal
from simgpt.frameworks.recipe_code.values import unknown as unknown_at

OF_TEXTS = (
    *("lower", "upper", "strip", "lstrip", "rstrip", "split", "rsplit", "startswith", "endswith"),
    *("removeprefix", "removesuffix", "replace", "partition", "rpartition", "join", "count"),
    *("title", "capitalize", "isdigit", "find"),
)
READ: dict[type, tuple[str, ...]] = {
    list: ("count", "index", "copy"),
    tuple: ("count", "index"),
    dict: ("copy",),
}
WRITTEN: dict[type, tuple[str, ...]] = {
    list: ("append", "extend", "insert", "pop", "remove", "clear", "reverse"),
    dict: ("update", "pop", "setdefault", "clear"),
    set: ("add", "update", "discard", "clear"),
}


def method_of(ev: Evaluation, value: Any, name: str) -> Any:
    """A method of a literal or container; None where it has none that is known."""
    kind = type(value)
    if isinstance(value, str) and name in OF_TEXTS:
        return Builtin(name, lambda place, given, named: _of_text(value, name, place, given))
    if isinstance(value, Function) and name in ("__name__", "__qualname__"):
        return value.name
    if isinstance(value, dict) and name in ("keys", "values", "items"):
        return Builtin(name, lambda place, given, named: _view(value, name))
    if isinstance(value, dict) and name == "get":
        return Builtin(name, lambda place, given, named: _get(value, place, given))
    if name in WRITTEN.get(kind, ()):
        return Builtin(
            name, lambda place, given, named: _written(ev, value, name, place, given, named)
        )
    if name in READ.get(kind, ()):
        return Builtin(name, lambda place, given, named: _tried(value, name, place, given, {}))
    return None


def _of_text(value: str, name: str, place: Place, given: list[Any]) -> Any:
    if not all(map(is_literal, given)):
        return unknown_at(f"a text's {name}", place)
    most = 1000 if name == "replace" else 10_000
    if any(isinstance(each, str) and len(each) > most for each in given):
        return unknown_at(f"a text's {name}", place)
    found = _tried(value, name, place, given, {})
    return bounded(found, place)


def _view(value: dict[Any, Any], name: str) -> list[Any]:
    if name == "items":
        return list(value.items())
    return list(value if name == "keys" else value.values())


def _get(value: dict[Any, Any], place: Place, given: list[Any]) -> Any:
    if not given or not hashable_literal(given[0]):
        return unknown_at("an element of a dictionary", place)
    return value.get(given[0], given[1] if len(given) > 1 else None)


def _written(
    ev: Evaluation,
    value: Any,
    name: str,
    place: Place,
    given: list[Any],
    named: dict[str, Any],
) -> Any:
    ev.journal.before_write(value)
    found = _tried(value, name, place, given, named)
    bounded(value, place)
    return found


def _tried(value: Any, name: str, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    try:
        return getattr(value, name)(*given, **named)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise RaisedError(f"{place}: {type(error).__name__} in {name}") from None
