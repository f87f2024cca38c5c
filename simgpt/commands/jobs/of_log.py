"""Fill in what `simgpt compare` was not given, from the arguments that the log contains."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from simgpt.step_options import NAMES, step_of_words
from topologies.errors import SimgptError
from topologies.records import record

if TYPE_CHECKING:
    from simgpt.frameworks.question import Question

MOST_SAID = 5  # settings of the log that are not carried over


@record(slots=False)
class Asked:
    """The model and the options of a step, and sentences on which of them come from the log."""

    model: str
    how: dict[str, Any]
    remarks: tuple[str, ...] = ()


def asked_of_log(log: Path, model: str | None, machine: str, how: Mapping[str, Any]) -> Asked:
    """The user's model and options, completed from the log. A FrameworkError says what neither
    gives."""
    from simgpt.frameworks.logs.question import NoArgumentsError, question_of_log
    from simgpt.frameworks.question import Instead

    source = click.get_current_context().get_parameter_source
    given = {name for name in NAMES if source(name) is ParameterSource.COMMANDLINE}
    if model is not None and "plan" in given:
        return Asked(model, dict(how))
    instead = Instead(how["stack"] if "stack" in given else None, how["batch"])
    try:
        question = question_of_log(log, model=model, devices=how["devices"], instead=instead)
    except NoArgumentsError:
        if model is None:
            raise
        return Asked(model, dict(how))
    return _asked(question, machine, how, given)


def log_alone(log: Path, machine: str, how: Mapping[str, Any]) -> Asked | None:
    """The question of the log's arguments alone; None without any, or if it cannot be predicted."""
    from simgpt.frameworks.logs.question import question_of_log

    try:
        question = question_of_log(log)
    except SimgptError:
        return None
    return _asked(question, machine, {**how, "model_fields": (), "routing": None}, set())


def _asked(question: Question, machine: str, how: Mapping[str, Any], given: set[str]) -> Asked:
    """A log's question as options; those that are given keep the user's value."""
    words = shlex.split(question.command(machine))[2:]
    of_log = step_of_words(words, click.get_current_context())
    told = {key: value for key, value in of_log.items() if key in how and key not in given}
    told["model_fields"] = (*of_log["model_fields"], *how["model_fields"])
    if "batch_tokens" in given:
        told["batch"] = None
    return Asked(of_log["model"], {**how, **told}, tuple(_remarks(question, given)))


def _remarks(question: Question, given: set[str]) -> list[str]:
    from simgpt.frameworks.logs.question import titles_of

    names = ("model", "plan", "batch", "devices", "stack")
    own = [name for name in names if name not in given]
    frameworks = titles_of(question)
    listed = f"{', '.join(own[:-1])} and {own[-1]}" if len(own) > 1 else "".join(own)
    said = [f"{listed} from the arguments of {frameworks} in the log"]
    known = [each for each in question.changes if each.name not in question.unknown]
    said += [f"{each}: {each.why}" for each in known[:MOST_SAID]]
    if len(known) > MOST_SAID:
        said.append(f"and {len(known) - MOST_SAID} more settings that simgpt does not carry over")
    return said
