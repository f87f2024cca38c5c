"""Variants: one machine with other software: its collective library, or the one of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topologies.environments import ENVIRONMENTS
from topologies.errors import MachineError
from topologies.files.facts import ABOUT
from topologies.files.schema import nearest

TABLES = ("software", "device")


def variants_in(document: Mapping[str, Any]) -> list[str]:
    """The names of a machine document's variants; the first one is the default."""
    variants = document.get("variants", {})
    if not isinstance(variants, Mapping):
        raise MachineError("variants must be tables by name: write [variants.NAME.software]")
    if taken := sorted(set(variants) & set(ENVIRONMENTS)):
        raise MachineError(f"variants.{taken[0]} is the name of an environment; choose another")
    return list(variants)


def as_variant(document: Mapping[str, Any], variant: str, origin: str) -> dict[str, Any]:
    """The document with the `software` and `device` keys of `[variants.NAME]` in place of its own.
    A variant's device is the same one, with kernels of another version.

    An empty variant takes the default, which is the first; a document without variants has
    none to name. What the machine's runs were like (`run_to_run`) holds for the default alone, with
    which they ran. The table's name stays in the result under `variant`. A source given for a
    table covers the keys that the variant gives there.
    """
    known = variants_in(document)
    if variant and variant not in known:
        every = [*known, *ENVIRONMENTS]
        others = f"known: {', '.join(every)}{nearest(variant, every)}"
        raise MachineError(f'{origin} has no variant "{variant}"; {others}')
    rest = {key: value for key, value in document.items() if key != "variants"}
    if not known:
        return rest
    chosen = variant or known[0]
    changes = document["variants"][chosen]
    if not isinstance(changes, Mapping) or set(changes) - set(TABLES):
        raise MachineError(f"{origin}: variants.{chosen} may hold software and device alone")
    result = rest | {"variant": chosen}
    if chosen != known[0]:
        result.pop("run_to_run", None)
    for name in TABLES:
        tables = [each.get(name, {}) for each in (rest, changes)]
        if not all(isinstance(each, Mapping) for each in tables):
            raise MachineError(f"{origin}: {name} must be a table, in variants.{chosen} too")
        if name == "software" or name in changes:
            own, new = map(_with_sources, tables)
            result[name] = _merged(own, new)
    return result


def _merged(own: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(own)
    for key, value in new.items():
        tables = [t for t in (own.get(key), value) if isinstance(t, dict) and "value" not in t]
        result[key] = _merged(*tables) if len(tables) == 2 else value
    return result


def _with_sources(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table in which every value carries its own source, so that it may move elsewhere."""
    about = {name: table[name] for name in ABOUT if name in table}
    result: dict[str, Any] = {}
    for key, value in table.items():
        if key in about:
            continue
        if isinstance(value, Mapping) and "value" not in value:
            result[key] = _with_sources(value)
        elif isinstance(value, Mapping):
            result[key] = dict(value)
        else:
            result[key] = {"value": value, **about} if about else value
    return result
