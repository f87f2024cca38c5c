"""A machine file as a list of facts: every value with its source, confidence and note."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from topologies.errors import MachineError
from topologies.records import record

CONFIDENCES = ("", "high", "medium", "low")
LABELS = (
    "name",
    "description",
    "kind",
    "variant",
    "like",
)  # words, not findings: they need no source
ABOUT = ("source", "confidence", "note", "inherited")


@record(slots=False)
class Fact:
    """One value of a machine file under its dotted key, and who says so.

    `inherited` names the machine or the device that the value was taken from, where the file has
    none of its own.
    """

    key: str
    value: Any
    source: str
    confidence: str = ""
    note: str = ""
    inherited: str = ""

    @property
    def text(self) -> str:
        """The value as the file writes it."""
        return self.value if isinstance(self.value, str) else json.dumps(self.value)

    @property
    def is_label(self) -> bool:
        """Whether it is a name rather than a finding."""
        return self.key.rpartition(".")[2] in LABELS

    @property
    def is_bare(self) -> bool:
        """Whether its value stands alone in a file, with nothing to say about it."""
        return self.is_label and not any(getattr(self, name) for name in ABOUT)


def read_facts(document: Mapping[str, Any], origin: str) -> tuple[Fact, ...]:
    """All facts of a document, in its order.

    A value stands either alone in a table that has a `source`, or as a small table
    {value, source, confidence, note} of its own. A source may begin with a short name of the
    document's `[sources]`, followed by a colon; it is spelled out here.
    """
    sources = document.get("sources", {})
    if not isinstance(sources, Mapping) or not all(isinstance(s, str) for s in sources.values()):
        raise MachineError(f"{origin}: sources must be a table of short name = full text")
    tables = {name: value for name, value in document.items() if name != "sources"}
    return tuple(_spelled_out(fact, sources, origin) for fact in _walk(tables, "", origin))


def _walk(table: Mapping[str, Any], prefix: str, origin: str) -> Iterator[Fact]:
    about = {name: table.get(name, "") for name in ABOUT}
    for name, value in table.items():
        path = prefix + name
        if name in ABOUT:
            continue
        if isinstance(value, Mapping) and "value" not in value:
            yield from _walk(value, f"{path}.", origin)
        elif isinstance(value, Mapping):
            yield _own_fact(path, value, origin)
        else:
            yield Fact(path, _frozen(value), **about)


def _own_fact(path: str, entry: Mapping[str, Any], origin: str) -> Fact:
    extra = [name for name in entry if name not in ("value", *ABOUT)]
    if extra:
        raise MachineError(
            f"{origin}: {path} has {extra[0]}, but beside its value go only source, confidence, "
            "note and inherited"
        )
    about = {name: entry.get(name, "") for name in ABOUT}
    return Fact(path, _frozen(entry["value"]), **about)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _spelled_out(fact: Fact, sources: Mapping[str, str], origin: str) -> Fact:
    for name in ABOUT:
        if not isinstance(text := getattr(fact, name), str):
            raise MachineError(f"{origin}: the {name} of {fact.key} is {text!r}, but must be text")
    if not fact.is_label and not fact.source.strip():
        name = fact.key.rpartition(".")[2]
        raise MachineError(
            f"{origin}: {fact.key} has no source; write {name} = "
            f'{{value = {json.dumps(fact.value)}, source = "where it comes from"}}'
        )
    if fact.confidence not in CONFIDENCES:
        raise MachineError(
            f'{origin}: {fact.key} has confidence "{fact.confidence}"; '
            f"try {', '.join(CONFIDENCES[1:])}"
        )
    short, colon, rest = fact.source.partition(":")
    source = f"{sources[short]}{colon}{rest}" if short in sources else fact.source
    return replace(fact, source=source)


def write_facts(facts: Iterable[Fact]) -> dict[str, Any]:
    """The document that `read_facts` reads as these facts."""
    document: dict[str, Any] = {}
    for fact in facts:
        entry: dict[str, Any] = {"value": _thawed(fact.value), "source": fact.source}
        entry |= {k: v for k in ABOUT[1:] if (v := getattr(fact, k))}
        put(document, fact.key, _thawed(fact.value) if fact.is_bare else entry)
    return document


def grouped(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """The facts as a file can have them: those outside tables first, then table by table, in the
    order in which the tables begin; in each, those that have no table of their own come first."""
    tree: dict[str, Any] = {}
    for fact in facts:
        put(tree, fact.key, fact)
    alone = {key: entry for key, entry in tree.items() if isinstance(entry, Fact)}
    return (*_inside(alone), *_inside({key: e for key, e in tree.items() if key not in alone}))


def _inside(table: Mapping[str, Any]) -> Iterator[Fact]:
    for entry in sorted(table.values(), key=lambda each: not _is_bare(each)):
        if isinstance(entry, Fact):
            yield entry
        else:
            yield from _inside(entry)


def _is_bare(entry: Fact | Mapping[str, Any]) -> bool:
    return isinstance(entry, Fact) and entry.is_bare


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Puts a value under a dotted key, making the tables on the way."""
    *tables, name = path.split(".")
    for table in tables:
        document = document.setdefault(table, {})
    document[name] = value


def _thawed(value: Any) -> Any:
    return [_thawed(item) for item in value] if isinstance(value, tuple) else value
