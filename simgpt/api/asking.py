"""A command asked from Python: its answer, its notes as warnings, its refusals as exceptions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from simgpt.api.collected import Collected
from simgpt.api.errors import ArgumentError, NoAnswerError
from simgpt.api.words import keywords_of, long_name, words_of
from simgpt.cli import cli, click_words
from simgpt.invocation import HELP
from topologies.exit_status import ExitStatus
from topologies.files.printable import sentence
from topologies.records import record
from topologies.session import in_default_session

CALLER = 3  # of `warnings.warn`: `ask`, the function that asks, and the line that called that one


@record(slots=False)
class Asked:
    """What a command answered to arguments: its text, or a function that makes it, and its JSON
    record, notes, files that it wrote, and the exit status with which it ends in a terminal."""

    command: Sequence[str]
    arguments: Sequence[object]
    told: str | Callable[[], str]
    record: Mapping[str, Any]
    notes: Sequence[str]
    paths: Sequence[Path]
    status: int

    @cached_property
    def text(self) -> str:
        """The text that the command prints."""
        return self.told if isinstance(self.told, str) else self.told()

    def __reduce__(self) -> tuple[type[Asked], tuple[object, ...]]:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return Asked, tuple((own | {"told": self.text}).values())


def ask(names: Sequence[str], arguments: Sequence[object], options: Mapping[str, Any]) -> Asked:
    """Ask the command of these names. A note of it is a UserWarning at the line of the caller's
    caller; a SimgptError says in one sentence what is wrong."""
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
    words = [*names, *words_of(command, arguments, options)]
    collected, status = _run(command, words, len(names))
    for note in collected.notes:
        warnings.warn(note, stacklevel=CALLER)
    told, record = collected.answers[-1] if collected.answers else ("", {})
    notes, paths = tuple(collected.notes), tuple(collected.paths)
    return Asked(("simgpt", *words), tuple(arguments), told, record, notes, paths, status)


@in_default_session
def _run(command: click.Command, words: list[str], names: int) -> tuple[Collected, int]:
    """The command in a context whose object collects what it says, and its exit status."""
    collected, status = Collected(words), 0
    try:
        context = command.make_context(
            " ".join(words[:names]), words[names:], obj=collected, help_option_names=HELP
        )
        with context:
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
