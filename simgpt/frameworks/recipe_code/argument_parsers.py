"""The command line of a recipe's script: `argparse` over what the script declares.

An option that the words given to the script have is read by its `type`, as argparse does it; any
other has its default. Source: Python 3.11, argparse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simgpt.frameworks.recipe_code.evaluation import Evaluation
from simgpt.frameworks.recipe_code.values import (
    Builtin,
    Place,
    RaisedError,
    RecipeError,
    Thing,
    unknown,
)
from topologies.records import record

MOST_OPTIONS = 2000
SWITCHES = {"store_true": True, "store_false": False}
SEVERAL = ("*", "+")
GROUPS = ("add_argument_group", "add_mutually_exclusive_group", "add_parser")
PARSES = ("parse_args", "parse_known_args")


@record
class Option:
    """One `add_argument`: its words on the command line, and what it says of them."""

    words: tuple[str, ...]
    says: dict[str, Any]

    @property
    def name(self) -> str:
        """Under which name its value stands."""
        if isinstance(own := self.says.get("dest"), str):
            return own
        long = [word for word in self.words if word.startswith("--")] or list(self.words)
        return long[0].lstrip("-").replace("-", "_")

    @property
    def default(self) -> Any:
        """Its value where the command line has none of its words."""
        switch = SWITCHES.get(str(self.says.get("action")))
        return self.says.get("default", None if switch is None else not switch)


@dataclass(slots=True)
class Declared:
    """What a script declares, and the words of the parsers within."""

    options: list[Option] = field(default_factory=list)
    parsers: set[str] = field(default_factory=set)


def argument_parser(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Thing:
    """`argparse.ArgumentParser(…)`."""
    return _parser(ev, Declared(), place)


def _parser(ev: Evaluation, declared: Declared, place: Place) -> Thing:
    """A parser, a group of its options or a parser within: all add to the same options."""
    found = Thing("a parser of arguments", place)

    def add(at: Place, given: list[Any], named: dict[str, Any]) -> None:
        words = tuple(each for each in given if isinstance(each, str))
        if words and len(declared.options) < MOST_OPTIONS:
            declared.options.append(Option(words, named))

    def inner(at: Place, given: list[Any], named: dict[str, Any]) -> Thing:
        declared.parsers.update(each for each in given if isinstance(each, str))
        return _parser(ev, declared, at)

    def parsed(at: Place, given: list[Any], named: dict[str, Any]) -> Thing:
        return parsed_arguments(ev, declared, at)

    def parsed_with_rest(at: Place, given: list[Any], named: dict[str, Any]) -> Any:
        return (parsed_arguments(ev, declared, at), [])

    own: dict[str, Callable[[Place, list[Any], dict[str, Any]], Any]] = {
        **dict.fromkeys(GROUPS, inner),
        "add_subparsers": lambda at, given, named: _parser(ev, declared, at),
        "add_argument": add,
        **dict(zip(PARSES, (parsed, parsed_with_rest), strict=True)),
        "set_defaults": lambda at, given, named: None,
    }
    found.fields |= {name: Builtin(name, call) for name, call in own.items()}
    return found


def parsed_arguments(ev: Evaluation, declared: Declared, place: Place) -> Thing:
    """The options' values: of the command line, of the words that a recipe's name gives, or the
    defaults. A RecipeError names a word that the script does not have."""
    found: dict[str, Any] = {}
    for option in declared.options:
        if option.default is None and option.says.get("required") is True:
            found[option.name] = unknown(f"the argument {option.name}", place)
        else:
            default = option.default
            is_text = isinstance(default, str)
            found[option.name] = _typed(ev, option, default, place) if is_text else default
    for name, value in ev.words.items():
        for option in (each for each in declared.options if each.name == name):
            found[name] = _typed(ev, option, value, place)
    _command(ev, declared, found, place)
    return Thing("the script's arguments", place, found)


def _command(ev: Evaluation, declared: Declared, found: dict[str, Any], place: Place) -> None:
    """Read the words of a command line into the values."""
    by_word = {word: each for each in declared.options for word in each.words}
    words = list(ev.command)
    while words:
        word, _, value = words.pop(0).partition("=")
        option = by_word.get(word)
        if option is None:
            if word in declared.parsers:
                continue
            raise RecipeError(f"the recipe's script does not have the option {word}")
        if str(option.says.get("action")) in SWITCHES:
            found[option.name] = SWITCHES[str(option.says["action"])]
            continue
        texts = [value] if value else []
        several = option.says.get("nargs") in SEVERAL
        while words and (several or not texts):
            if words[0] in by_word or words[0] in declared.parsers:
                break
            texts.append(words.pop(0))
        values = [_typed(ev, option, text, place) for text in texts]
        found[option.name] = values if several else values[0] if values else None


def _typed(ev: Evaluation, option: Option, value: Any, place: Place) -> Any:
    """A value by the option's `type`."""
    kind = option.says.get("type")
    if kind is None or not isinstance(value, str | int):
        return value
    try:
        return ev.call(kind, [str(value)], {}, place)
    except RaisedError:
        raise RecipeError(f"{option.words[-1]} of the script does not take {value}") from None
