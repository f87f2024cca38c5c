"""The options that ask a question: their fields, and the question of a file they begin with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from simgpt.invocation import ASKED
from simgpt.question import BATCHES, CHANGES, MEASUREMENT, Question
from simgpt.question_rows import ROWS, QuestionError, with_options
from topologies.files.named_files import FILES
from topologies.files.reading import UserFile
from topologies.records import record

BEGUN = "question"  # the one that a command's options begin with, in click's context
_FILE = UserFile("question", QuestionError)


@record
class Asked:
    """The fields that a command has options of, and those that it ignores in a question."""

    fields: tuple[str, ...] = ()
    unheeded: tuple[str, ...] = ()


def read_question(path: Path) -> Question:
    """The question of a file: in TOML as a point of a study or an anchor has it, in JSON an answer
    or what `as_json` gives."""
    document = _FILE.document(str(path))
    if path.suffix != ".toml":
        return Question.from_json(document)
    own = {key: each for key, each in document.items() if key != MEASUREMENT}
    return Question.from_toml(own, path.parent)


def _keep_question(context: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Have the options begin with what a file says, which the words of the command stand over."""
    if path is None:
        return
    if path.suffix not in FILES:
        raise click.BadParameter(f"{path} must end in .toml or .json", context, param)
    question = read_question(path)
    plain = {name: each for name, each in question.given.items() if name not in CHANGES}
    context.meta[BEGUN] = question
    context.default_map = {**(context.default_map or {}), **plain}


_question_option = click.option(
    "--question",
    type=click.Path(path_type=Path),
    expose_value=False,
    is_eager=True,
    callback=_keep_question,
    help="Begin with the question of a file, which other options change: the JSON of an answer, or "
    "TOML as an anchor's (docs/studies.md).",
)


def asks(
    *names: str,
    without: Sequence[str] = (),
    unheeded: Sequence[str] = (),
    **changes: Mapping[str, Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of the fields of these names, or of all `without` some; the
    command gets the question first. A question that it begins with may have `unheeded` fields, on
    which its answer does not depend. `changes` are attributes of single fields' options."""
    asked = tuple(name for name in ROWS if name in (names or ROWS) and name not in without)

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def told(**values: Any) -> Any:
            mine = {name: values.pop(name) for name in asked}
            given = {name: each for name, each in mine.items() if each is not None}
            _check_texts(given)
            whole = _over(given, unheeded)
            if whole.keys() >= {*BATCHES}:
                raise click.UsageError("give --batch or --batch-tokens, not both")
            return function(Question(**whole), **values)

        told.asked = Asked(asked, tuple(unheeded))  # type: ignore[attr-defined]
        of_fields = {name: _usual(name) | dict(changes.get(name, {})) for name in asked}
        begins = _question_option(told) if "model" in asked else told
        return with_options(begins, asked, **of_fields)

    return give


def _check_texts(given: Mapping[str, Any]) -> None:
    """Refuse texts that are empty, such as those of a shell's variable that is not set."""
    for name, each in given.items():
        if each == "" and name != "plan":  # which a search may leave wholly open
            raise click.UsageError(f"{'/'.join(ROWS[name].flags) or name.upper()} is empty")


def _over(given: dict[str, Any], unheeded: Sequence[str]) -> dict[str, Any]:
    """The values of a command's fields over those of the question that it begins with: keys of the
    machine and the model are added to its own, and of two ways to give the batch the command's
    stands."""
    context = click.get_current_context(silent=True)
    begun: Question | None = None if context is None else context.meta.get(BEGUN)
    if begun is None or context is None:
        return given
    of_words = {
        name: each
        for name, each in given.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        or (name in CHANGES and each)  # a segment alone
    }
    found, before = begun.changed(**of_words).given, begun.given
    check_heeded(found, given, unheeded, str(context.info_name))
    context.meta[ASKED] = begun.changed(**of_words)
    own = {name: each for name, each in given.items() if name not in before}
    return {name: each for name, each in {**own, **found}.items() if name in given}


def check_heeded(
    given: Iterable[str], asked: Collection[str], unheeded: Collection[str], command: str
) -> None:
    """Refuse fields of a question that a command does not ask for, unless its answer does not
    depend on them."""
    for name in given:
        if name not in asked and name not in unheeded:
            raise QuestionError(
                f"the question has {name}, which simgpt {command} does not support; leave it out"
            )


def _usual(name: str) -> dict[str, Any]:
    """What a field's option has where a command says nothing else of it."""
    if name == "machine":
        return {"required": True}
    usual = getattr(Question(), name)
    return {"default": usual, "show_default": True} if usual and name not in CHANGES else {}


def fields_asked(command: click.Command) -> tuple[str, ...]:
    """The fields of the question that a command is asked; none of one that is asked no question."""
    return _asked(command).fields


def fields_unheeded(command: click.Command) -> tuple[str, ...]:
    """The fields that a question may have which the command begins with, and which it ignores."""
    return _asked(command).unheeded


def _asked(command: click.Command) -> Asked:
    found: Asked = getattr(command.callback, "asked", Asked())
    return found
