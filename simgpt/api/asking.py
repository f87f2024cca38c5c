"""A command asked from Python: its answer, its notes as warnings, its refusals as exceptions."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import UNSET, ParameterSource  # type: ignore[attr-defined]

from simgpt.api.collected import Collected
from simgpt.api.errors import ArgumentError, NoAnswerError
from simgpt.api.words import Found, check_known, found_of, keywords_of, long_name, option_words
from simgpt.cli import HELP, cli, click_words
from simgpt.question import Question
from simgpt.question_options import check_heeded, fields_asked, fields_unheeded
from simgpt.question_rows import SEGMENT, Table, words_of
from topologies.exit_status import ExitStatus
from topologies.files.printable import sentence
from topologies.records import record
from topologies.session import in_default_session

CALLER = 4  # of `warnings.warn`: `ask`, the function that asks, `refusing`, and the user's line
Function = TypeVar("Function", bound=Callable[..., Any])


@record(slots=False)
class Answered:
    """What a command answered: the words that ask it in a terminal, its text, or a function that
    makes it, its JSON record, notes, files that it wrote, the exit status with which it ends in a
    terminal, and the question, where it asked one."""

    command: Sequence[str]
    told: str | Callable[[], str]
    record: Mapping[str, Any]
    notes: Sequence[str]
    paths: Sequence[Path]
    status: int
    question: Question | None = None

    @cached_property
    def text(self) -> str:
        """The text that the command prints."""
        return self.told if isinstance(self.told, str) else self.told()

    def __reduce__(self) -> tuple[type[Answered], tuple[object, ...]]:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return Answered, tuple((own | {"told": self.text}).values())


def refusing(*names: str) -> Callable[[Function], Function]:
    """Give a function that asks the command of these names a sentence on keywords that it does not
    know, which says what they are here, where they are another framework's."""

    def give(function: Function) -> Function:
        known = inspect.signature(function).parameters

        @wraps(function)
        def asked(*given: Any, **keywords: Any) -> Any:
            if unknown := {name: each for name, each in keywords.items() if name not in known}:
                check_known(_command(names), unknown)
            return function(*given, **keywords)

        return asked  # type: ignore[return-value]

    return give


def _command(names: Sequence[str]) -> click.Command:
    """The command of these names."""
    context = click.Context(cli, info_name="simgpt", **cli.context_settings)
    command: click.Command = cli
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(context, name)
        if found is None:
            known = ", ".join(command.list_commands(context))
            raise ArgumentError(f"{context.info_name} knows no {name!r}; known: {known}")
        command = found
        context = click.Context(command, info_name=name, parent=context)
    return command


def ask(names: Sequence[str], given: Mapping[str, Any]) -> Answered:
    """Ask the command of these names, with values by keyword, of which None is not given. A note of
    it is a UserWarning at the line of the caller's caller; a SimgptError says in one sentence what
    is wrong."""
    command = _command(names)
    values = {key: each for key, each in given.items() if each is not None}
    fields, others = apart(command, values)
    check_known(command, others)
    params = keywords_of(command)
    found_by = {str(params[key].name): found_of(params[key], key, others[key]) for key in others}
    words = [*names, *_words(command, fields, found_by)]
    collected, status = _run(command, words, fields, found_by)
    for note in collected.notes:
        warnings.warn(note, stacklevel=CALLER)
    told, record = collected.answers[-1] if collected.answers else ("", {})
    notes, paths = tuple(collected.notes), tuple(collected.paths)
    asked = Question(**fields) if fields else None
    return Answered(("simgpt", *words), told, record, notes, paths, status, asked)


def apart(command: click.Command, given: Mapping[str, Any]) -> tuple[Table, Table]:
    """Values of the fields that a command is asked, each in its kind, and what else is given. A
    `Question` in place of the model is the base, of which the others change fields."""
    asked, others = fields_asked(command), dict(given)
    base = others.pop("model") if isinstance(others.get("model"), Question) else Question()
    names = [*asked, SEGMENT] if "set" in asked else list(asked)
    fields = base.changed(**{name: others.pop(name) for name in names if name in others}).given
    check_heeded(fields, asked, fields_unheeded(command), str(command.name))
    return {name: each for name, each in fields.items() if name in asked}, others


def _words(
    command: click.Command, fields: Mapping[str, Any], found: Mapping[str, Found]
) -> list[str]:
    """The words of a command line that asks the same: other arguments, the question, other
    options."""
    own = [(param, found[str(param.name)]) for param in command.params if param.name in found]
    before = [(each, text) for each, text in own if isinstance(each, click.Argument)]
    after = [(each, text) for each, text in own if not isinstance(each, click.Argument)]
    given = [word for param, text in before for word in option_words(param, text)]
    return [*given, *words_of(fields), *(w for p, text in after for w in option_words(p, text))]


@in_default_session
def _run(
    command: click.Command,
    words: list[str],
    fields: Mapping[str, Any],
    found: Mapping[str, Found],
) -> tuple[Collected, int]:
    """The command in a context whose object collects what it says, and its exit status."""
    collected, status = Collected(words), 0
    name = str(command.name)
    context = click.Context(command, info_name=name, obj=collected, help_option_names=HELP)
    try:
        with context:
            for param in command.params:
                if param.name in fields:
                    context.params[str(param.name)] = fields[str(param.name)]
                    context.set_parameter_source(str(param.name), ParameterSource.COMMANDLINE)
                else:
                    param.handle_parse_result(context, dict(found), [])
            absent = {name: None for name, each in context.params.items() if each is UNSET}
            context.params |= absent
            command.invoke(context)
    except SystemExit as end:
        status = int(end.code or 0)
    except click.ClickException as error:
        raise _refusal(command, error) from None
    if not collected.answers and status > ExitStatus.SIGNALLED:
        raise KeyboardInterrupt
    if not collected.answers and status:
        raise NoAnswerError(sentence(" ".join(collected.notes)).removeprefix("simgpt: "))
    return collected, status


def _refusal(command: click.Command, error: click.ClickException) -> ArgumentError:
    """What click says of options, said of keywords."""
    said = click_words(error)
    for option in keywords_of(command).values():
        quoted = " / ".join(f"'{each}'" for each in sorted(option.opts, key=len))
        said = said.replace(quoted, long_name(option))
        for name in (each for each in option.opts if each.startswith("--")):
            said = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", long_name(option), said)
    return ArgumentError(sentence(said))
