"""Settings by which only some of the weights are trained, which no prediction has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

from simgpt.frameworks.identity.names import Names
from simgpt.frameworks.identity.rows import table
from simgpt.frameworks.switches import NOT_ON
from topologies.files.printable import shown

CLASSES = ("_component_", "_target_", "class_path", "converters")


def frozen(names: Names) -> str:
    """The setting that freezes weights or trains adapters of them, with its value; or nothing.

    A setting that says how the model is trained, as `finetuning_type`, comes before all others.
    """
    known = table()["frozen"]
    settings = {**names.keys, **{f"--{name}": value for name, value in names.flags.items()}}
    leaves = {name: _leaf(name) for name in settings}
    choices = [name for name in settings if leaves[name] in known["choices"]]
    for name in choices:
        if settings[name].lower() not in known["full"]:
            return _said(name, settings[name])
    for command in names.commands:
        for word in takewhile(lambda each: not each.startswith("__"), command.lower().split()):
            if _matches(word, known["programs"]):
                return shown(word)
    return "" if choices else next(_adapters(settings, leaves, known), "")


def _adapters(
    settings: Mapping[str, str], leaves: Mapping[str, str], known: Mapping[str, Any]
) -> Iterator[str]:
    """What else says that adapters are trained, or weights kept as they are; a program's option
    without a value is switched on."""
    for name, value in settings.items():
        leaf, off = leaves[name], value.lower() in NOT_ON
        if leaf in CLASSES and _matches(value.lower(), known["classes"]):
            yield _said(name, value)
        elif name.startswith("--") and not value and _matches(leaf, known["switches"]):
            yield _said(name, "")
        elif not off and (
            _matches(leaf, [*known["sizes"], *known["switches"]])
            or set(name.lower().split(".")[:-1]) & set(known["sections"])
        ):
            yield _said(name, value)


def _matches(word: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(word, each) for each in patterns)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2].lstrip("-").replace("-", "_").lower()


def _said(name: str, value: str) -> str:
    return f"{shown(name)} {shown(value)}" if value else shown(name)
