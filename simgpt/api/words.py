"""Arguments of Python as the words of a command line, so that both are read by the same code."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from simgpt.api.errors import ArgumentError
from simgpt.arguments.foreign_options import instead_of
from topologies.files.printable import shown

NOT_OPTIONS = ("json", "output")  # what Python has from the result itself
WITH_OUTPUT = ("sweep", "report")  # whose output is more than their answer
IN_ONE = ("plan", "also_devices", "nodes")  # whose values one word lists


def keywords_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by the keywords that Python gives them with."""
    found = {}
    for param in command.params:
        if isinstance(param, click.Option):
            name = long_name(param)
            if name not in NOT_OPTIONS or (name == "output" and command.name in WITH_OUTPUT):
                found[name] = param
    return found


def long_name(option: click.Option) -> str:
    """An option's keyword: its longest name, with an underscore for each hyphen within."""
    return max(option.opts, key=len).lstrip("-").replace("-", "_")


def words_of(
    command: click.Command, arguments: Sequence[object], options: Mapping[str, Any]
) -> list[str]:
    """The words of a command line with these arguments and options; None is an option that is not
    given."""
    known = keywords_of(command)
    for keyword in options:
        if keyword not in known:
            raise ArgumentError(_unknown(command, keyword, options[keyword], known))
    given = [_text("argument", each) for each in arguments]
    words = ["--", *given] if any(each.startswith("-") for each in given) else given
    asked = [
        word
        for keyword, value in options.items()
        if value is not None
        for word in _option_words(known[keyword], keyword, value)
    ]
    return [*asked, *words] if words[:1] == ["--"] else [*words, *asked]


def _unknown(command: click.Command, keyword: str, value: Any, known: Iterable[str]) -> str:
    if ours := instead_of(command, keyword, value):
        return f"{command.name} takes no {shown(keyword)}: {ours}"
    near = difflib.get_close_matches(keyword, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"{command.name} takes no {shown(keyword)}; {hint}"


def _option_words(option: click.Option, keyword: str, value: Any) -> Iterator[str]:
    name = option.opts[0]
    if option.is_flag:
        if not isinstance(value, bool):
            raise ArgumentError(f"{keyword} is True or False, not {shown(repr(value))}")
        yield from [name] * value
    elif option.multiple:
        for each in _several(keyword, value):
            yield from (name, each)
    elif keyword in IN_ONE and not isinstance(value, str | os.PathLike):
        yield from (name, ",".join(_several(keyword, value)))
    else:
        yield from (name, _text(keyword, value))


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
    if isinstance(value, list | tuple):
        return "+".join(_text(keyword, each) for each in value)
    return str(value).lower() if isinstance(value, bool) else _text(keyword, value)


def _text(keyword: str, value: Any) -> str:
    """A single value as a word."""
    if value is None or isinstance(value, bool | bytes | Mapping | list | tuple | set):
        raise ArgumentError(f"{keyword} cannot be {shown(repr(value))}")
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    return str(value)
