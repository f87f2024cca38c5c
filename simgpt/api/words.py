"""Values that Python gives for options, as the words that a command line would have for them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword
from typing import Any

import click

from simgpt.api.errors import ArgumentError
from simgpt.arguments.foreign_options import instead_of
from topologies.files.printable import shown

Found = str | list[str] | bool  # what the parser of a command line finds of a parameter
NOT_OPTIONS = ("json", "output", "question")  # what Python has from results and questions
WITH_OUTPUT = ("sweep", "report", "calibrate")  # whose output is more than their answer
IN_ONE = ("also_devices", "nodes")  # whose values one word lists


def keywords_of(command: click.Command) -> dict[str, click.Parameter]:
    """The parameters of a command by the keywords that Python gives them with."""
    found = {}
    for param in command.params:
        name = long_name(param)
        if name not in NOT_OPTIONS or (name == "output" and command.name in WITH_OUTPUT):
            found[name] = param
    return found


def long_name(param: click.Parameter) -> str:
    """A parameter's keyword: the longest name of an option, with an underscore for each hyphen
    within, or the parameter's own name where that is a word of Python's."""
    if isinstance(param, click.Argument):
        return str(param.name)
    name = max(param.opts, key=len).lstrip("-").replace("-", "_")
    return str(param.name) if iskeyword(name) else name


def check_known(command: click.Command, given: Mapping[str, Any]) -> None:
    """Refuse a keyword that a command has no parameter for, and say which is near."""
    known = keywords_of(command)
    for keyword, value in given.items():
        if keyword in known:
            continue
        if ours := instead_of(command, keyword, value):
            raise ArgumentError(f"{command.name} takes no {shown(keyword)}: {ours}")
        near = difflib.get_close_matches(keyword, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise ArgumentError(f"{command.name} takes no {shown(keyword)}; {hint}")


def found_of(param: click.Parameter, keyword: str, value: Any) -> Found:
    """What the parser of a command line would have found of a parameter with this value."""
    if isinstance(param, click.Option) and param.is_flag:
        if not isinstance(value, bool):
            raise ArgumentError(f"{keyword} is True or False, not {shown(repr(value))}")
        return value
    if param.multiple or param.nargs == -1:
        return _several(keyword, value)
    if keyword in IN_ONE and not isinstance(value, str | os.PathLike):
        return ",".join(_several(keyword, value))
    return _text(keyword, value)


def option_words(param: click.Parameter, found: Found) -> list[str]:
    """The words of a command line in which its parser finds that."""
    texts = found if isinstance(found, list) else [found] if isinstance(found, str) else []
    if isinstance(param, click.Argument):  # of which one that begins so would be an option
        return [f"./{each}" if each.startswith("-") else each for each in texts]
    name = param.opts[0]
    return (
        [name] * found if isinstance(found, bool) else [w for each in texts for w in (name, each)]
    )


def _several(keyword: str, value: Any) -> list[str]:
    """The words that a mapping, a list or a single text gives: `key=value` for each of a mapping's,
    with commas between the values that it is to sweep."""
    if isinstance(value, Mapping):
        return [
            f"{key}={_swept(each) if keyword == 'sweep' else _value(f'{keyword}[{key!r}]', each)}"
            for key, each in value.items()
        ]
    if isinstance(value, str | os.PathLike) or not isinstance(value, Iterable):
        return [_text(keyword, value)]
    return [_text(keyword, each) for each in value]


def _swept(values: Any) -> str:
    if isinstance(values, str) or not isinstance(values, Iterable):
        return _value("sweep", values)
    texts = [_value("sweep", each) for each in values]
    for text in texts:
        if "," in text:
            raise ArgumentError(f"sweep: {shown(text)} has a comma; use a study file")
    return ",".join(texts)


def _value(keyword: str, value: Any) -> str:
    """A value of a plan, a model or a machine: a list is written with plus signs."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "+".join(_text(keyword, each) for each in value)
    return str(value).lower() if isinstance(value, bool) else _text(keyword, value)


def _text(keyword: str, value: Any) -> str:
    """A single value as a word."""
    if value is None or isinstance(value, bool | bytes | Mapping | list | tuple | set):
        raise ArgumentError(f"{keyword} cannot be {shown(repr(value))}")
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    return str(value)
