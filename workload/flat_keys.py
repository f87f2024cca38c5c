"""Records that are nested in code and flat in texts: `kv_rank=512` is `gpt.latent.kv_rank`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

from topologies.records import Limits, limits

Parts = Mapping[str, type[Any]]


class Key(NamedTuple):
    """A flat key: where it stands ("" of the record itself), its kind, its default (MISSING where
    it must be given), what it may be, and what gets its value."""

    part: str
    name: str
    kind: str
    default: Any
    limits: Limits | None
    get: Callable[[Any], Any]


class Flat:
    """A record with parts that are records, by whose flat KEYS it is made, changed and asked.

    A part's keys are its fields, behind its PREFIX if it has one.
    """

    __slots__ = ()
    PARTS: ClassVar[Parts]
    KEYS: ClassVar[Mapping[str, Key]]

    @classmethod
    def of(cls, **flat: Any) -> Self:
        """A record from its flat keys; a part of which nothing is given has its defaults."""
        nested = cls._nested(flat)
        parts = {name: kind(**nested.get(name, {})) for name, kind in cls.PARTS.items()}
        return cls(**parts, **nested.get("", {}))

    def changed(self, **flat: Any) -> Self:
        """The record with other values of some flat keys."""
        nested = self._nested(flat)
        own = nested.pop("", {})
        parts = {name: replace(getattr(self, name), **keys) for name, keys in nested.items()}
        return replace(self, **own, **parts)  # type: ignore[type-var]

    def value(self, key: str) -> Any:
        """The value of a flat key."""
        return self.KEYS[key].get(self)

    def flat(self) -> dict[str, Any]:
        """Every flat key with its value."""
        return {key: self.value(key) for key in self.KEYS}

    def is_given(self, key: str) -> bool:
        """Whether a flat key has another value than its default."""
        return bool(self.value(key) != self.KEYS[key].default)

    def said(self, key: str) -> str:
        """A flat key with its value, as a text has them."""
        value = self.value(key)
        return f"{key}={str(value).lower() if isinstance(value, bool) else value}"

    def given_of(self, part: str) -> list[str]:
        """The flat keys of a part that have other values than their defaults, with these."""
        own = (key for key, each in self.KEYS.items() if each.part == part)
        return [self.said(key) for key in own if self.is_given(key)]

    @classmethod
    def _nested(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """Flat keys by their parts; those that are unknown are the record's own."""
        found: dict[str, Any] = {}
        for name, value in flat.items():
            key = cls.KEYS.get(name)
            part, own = (key.part, key.name) if key else ("", name)
            found.setdefault(part, {})[own] = value
        return found


def keys_of(kind: type[Any], parts: Parts) -> dict[str, Key]:
    """The flat keys of a record with parts, in the order of its fields."""
    return _keys("", kind, parts)


def _keys(part: str, kind: type[Any], parts: Parts) -> dict[str, Key]:
    own, prefix = limits(kind), getattr(kind, "PREFIX", "")
    found: dict[str, Key] = {}
    for each in fields(kind):
        if not part and each.name in parts:
            found |= _keys(each.name, parts[each.name], {})
            continue
        about = str(each.type), each.default, own.get(each.name)
        get = attrgetter(f"{part}.{each.name}" if part else each.name)
        found[prefix + each.name] = Key(part, each.name, *about, get)
    return found
