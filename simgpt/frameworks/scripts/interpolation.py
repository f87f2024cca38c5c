"""Values of a file's settings that stand for others: `${section.name}`, `${.name}`, resolvers.

OmegaConf's own parser and visitor read them; names are looked up here, so that only resolvers of
RESOLVERS are known, `oc.env` never sees the process's environment, and the work is bounded: each
value is found once, and every text and every copy of a section is charged to a budget.
Sources: omry/omegaconf 2.4, docs/source/usage.rst and custom_resolvers.rst; `multiply` and `sum`
are NVIDIA/NeMo's (nemo/core/config/hydra_runner.py), `divide_ceil` and `divide_floor` its
launcher's (NVIDIA/NeMo-Framework-Launcher, launcher_scripts/main.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from simgpt.frameworks.reading import FrameworkError, text_of
from simgpt.frameworks.scripts.variables import EACH, Value, expanded, joined, text_budget
from topologies.files.budget import Budget

if TYPE_CHECKING:
    from omegaconf._key_path import NodeInterpolationKey

MOST_CHARACTERS = 2**14
PARSED = 16  # characters of a budget that one takes which is parsed: about 40 us
RESOLVERS: Mapping[str, Callable[[float, float], float]] = {
    "multiply": lambda left, right: left * right,
    "sum": lambda left, right: left + right,
    "divide_ceil": lambda left, right: ceil(left / right),
    "divide_floor": lambda left, right: floor(left / right),
}
Path = tuple[str, ...]


class _UnreadError(Exception):
    """An interpolation leads to nothing that is known."""


def resolved(document: Mapping[str, Any], variables: Mapping[str, Value]) -> dict[str, Any]:
    """A table without what stands for a value that is known; the rest stays as it is.

    >>> resolved({"model": {"hidden": "64", "ffn": "${multiply:4, ${.hidden}}"}, "tp": "$TP"},
    ...     {"TP": "2"})
    {'model': {'hidden': '64', 'ffn': '256'}, 'tp': '2'}
    """
    found: dict[str, Any] = _File(document, variables).value((), document)
    return found


def with_variables(
    document: Mapping[str, Any], own: Mapping[str, Any], variables: Mapping[str, Value]
) -> dict[str, Any]:
    """A table as `resolved`, with variables of a shell: its `own`, and those of its surroundings,
    which come before them."""
    texts = {name: text_of(value) for name, value in resolved(own, variables).items()}
    shell = {**texts, **variables}
    named = {name: joined(shell[name]) for name in own if name in document}
    return resolved({**document, **named}, shell)


@dataclass
class _File:
    """A table, the variables of its surroundings, and what is found so far, with its size."""

    document: Mapping[str, Any]
    variables: Mapping[str, Value]
    found: dict[Path, tuple[Any, int]] = field(default_factory=dict)
    active: list[Path] = field(default_factory=list)
    budget: Budget = field(default_factory=lambda: text_budget("the file"))

    def value(self, path: Path, raw: Any) -> Any:
        """The value at a path, all in it resolved."""
        if path not in self.found:
            before = self.budget.spent
            self.budget.charge(EACH)
            if isinstance(raw, Mapping):
                raw = {key: self.value((*path, str(key)), each) for key, each in raw.items()}
            elif isinstance(raw, list):
                raw = [self.value((*path, str(at)), each) for at, each in enumerate(raw)]
            elif isinstance(raw, str) and "$" in raw:
                raw = self._text(path, raw)
            self.found[path] = raw, self.budget.spent - before
        return self.found[path][0]

    def _text(self, path: Path, raw: str) -> Any:
        """What a text stands for; as it is where it leads to nothing that is known."""
        if path in self.active:
            raise _UnreadError
        self.active.append(path)
        try:
            if "${" in raw:
                return self._visited(raw)
        except _UnreadError:
            pass
        finally:
            self.active.pop()
        text = expanded(raw, self.variables, self.budget)
        return raw if "$" in text else text

    def _visited(self, raw: str) -> Any:
        from omegaconf.errors import GrammarParseError, OmegaConfBaseException
        from omegaconf.grammar_parser import parse
        from omegaconf.grammar_visitor import GrammarVisitor

        self.budget.charge(PARSED * len(raw))
        try:
            visitor = GrammarVisitor(self._node, self._resolver, None)
            found = visitor.visit(parse(raw))
        except (GrammarParseError, OmegaConfBaseException, RecursionError):
            raise _UnreadError from None
        if isinstance(found, str) and len(found) > MOST_CHARACTERS:
            name = ".".join(self.active[-1])
            raise FrameworkError(f"{name} grows beyond {MOST_CHARACTERS:,} characters")
        return found if isinstance(found, Mapping | list) else _written(found)

    def _node(self, key: NodeInterpolationKey, memo: object) -> Any:
        """The value that `${a.b}` or `${.b}` stands for."""
        dots = key.relative_dots
        above = self.active[-1][:-dots] if dots else ()
        path = (*above, *key.parts)
        if not dots and len(path) == 1 and path[0] not in self.document:
            if path[0] in self.variables:
                return joined(self.variables[path[0]])
            raise _UnreadError
        return self._at(path)

    def _at(self, path: Path) -> Any:
        """The value at a path, which may lead through others."""
        value: Any = self.document
        for at, part in enumerate(path):
            if isinstance(value, str) and "$" in value:
                value = self.value(path[:at], value)
            if isinstance(value, list) and part.isdecimal() and int(part[:6]) < len(value):
                value = value[int(part[:6])]
            elif isinstance(value, Mapping) and part in value:
                value = value[part]
            else:
                raise _UnreadError
        found = self.value(path, value)
        self.budget.charge(self.found[path][1])
        if isinstance(found, str) and "${" in found:
            raise _UnreadError  # it leads to nothing itself
        return found

    def _resolver(self, name: str, args: Sequence[Any], args_str: Sequence[str]) -> Any:
        """What a resolver returns; those that are not known are not read."""
        if name == "oc.env" and 1 <= len(args) <= 2:
            if args[0] in self.variables:
                return joined(self.variables[args[0]])
            if len(args) == 2:
                return args[1]
        if name == "oc.decode" and len(args) == 1:
            return args[0]
        if name == "oc.select" and 1 <= len(args) <= 2:
            try:
                return self._at(tuple(str(args[0]).split(".")))
            except _UnreadError:
                if len(args) == 2:
                    return args[1]
                raise
        if name in RESOLVERS and len(args) == 2:
            try:
                return RESOLVERS[name](*map(_number, args))
            except (ValueError, ZeroDivisionError, OverflowError):
                raise _UnreadError from None
        raise _UnreadError


def _number(value: Any) -> float:
    """A number or its text."""
    return float(value)


def _written(value: Any) -> str:
    """A value as a YAML has it."""
    return (
        f"{value:.15g}" if isinstance(value, float) else "null" if value is None else text_of(value)
    )
