"""Values of a file's settings that stand for others: `${section.name}` and `${.name}` as OmegaConf
reads them, a few of its resolvers, and variables of the surroundings.

Sources: omry/omegaconf 2.3, docs/source/usage.rst and custom_resolvers.rst; `multiply` and
`divide_ceil` are NVIDIA/NeMo's own (nemo/utils/exp_manager.py; its launcher's main.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from simgpt.frameworks.reading import FrameworkError, text_of
from simgpt.frameworks.scripts.variables import EACH, Value, expanded, joined, text_budget
from topologies.files.budget import Budget

MOST_CHARACTERS, MOST_SETTINGS = 2**14, 10_000
ENVIRONMENT = "oc.env"
_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
RESOLVERS: Mapping[str, Callable[[list[float]], float]] = {
    "multiply": prod,
    "divide_ceil": lambda numbers: ceil(numbers[0] / numbers[1]),
}


def resolved(settings: Mapping[str, Any], variables: Mapping[str, Value]) -> dict[str, Any]:
    """Settings by dotted names, without what stands for a value that is known; the rest stays.

    >>> settings = {"model.hidden": "64", "model.ffn": "${multiply:4, ${.hidden}}", "tp": "$TP"}
    >>> resolved(settings, {"TP": "2"})
    {'model.hidden': '64', 'model.ffn': '256', 'tp': '2'}
    """
    own = {name: text_of(value) for name, value in settings.items() if name.isupper()}
    file = _File(settings, {**own, **variables})
    return {
        name: file.text_of(name) if isinstance(value, str) and "$" in value else value
        for name, value in settings.items()
    }


@dataclass(frozen=True, slots=True)
class _File:
    """Settings, the variables of their surroundings, and the texts that are found so far: each is
    looked for once, so that the time is bounded by the settings' number and length."""

    settings: Mapping[str, Any]
    variables: Mapping[str, Value]
    found: dict[str, str] = field(default_factory=dict)
    budget: Budget = field(default_factory=lambda: text_budget("the file"))

    def text_of(self, name: str) -> str:
        """A setting's text with all that is known put in; as it is where it refers to itself."""
        if name in self.found:
            return self.found[name]
        text = self.found[name] = text_of(self.settings[name])

        def value_of(found: re.Match[str]) -> str:
            value = self._value(name, found[1])
            value = found[0] if value is None else value
            self.budget.charge(EACH + len(value))
            return value

        before = ""
        while before != text:
            self.budget.charge(EACH + len(text))
            before, text = text, _INNERMOST.sub(value_of, text)
            if len(text) > MOST_CHARACTERS:
                raise FrameworkError(f"{name} grows beyond {MOST_CHARACTERS:,} characters")
        if "$" in text and not _INNERMOST.search(text):
            text = expanded(text, self.variables, self.budget)
        self.found[name] = text
        return text

    def _value(self, name: str, inner: str) -> str | None:
        """What `${inner}` stands for; None where it is not known."""
        resolver, colon, rest = inner.partition(":")
        words = [each.strip().strip("'\"") for each in rest.split(",")]
        if colon and resolver == ENVIRONMENT:
            known = self.variables.get(words[0])
            return joined(known) if known is not None else words[1] if len(words) > 1 else None
        if colon and resolver in RESOLVERS:
            return _computed(resolver, words)
        key = _absolute(name, inner)
        if key in self.settings and len(self.found) < MOST_SETTINGS:
            return self.text_of(key)
        found = expanded(f"${{{inner}}}", self.variables, self.budget)
        return None if "$" in found else found


def _absolute(name: str, inner: str) -> str:
    """The name of a setting that one of this `name` refers to."""
    levels = len(inner) - len(inner.lstrip("."))
    above = name.split(".")[:-levels] if levels else []
    return ".".join([*above, inner[levels:]])


def _computed(resolver: str, words: list[str]) -> str | None:
    if not all(_NUMBER.fullmatch(word) for word in words):
        return None
    try:
        return f"{RESOLVERS[resolver]([float(word) for word in words]):.15g}"
    except (IndexError, ZeroDivisionError):
        return None
