"""What a command was asked, as its JSON keeps it: `simgpt report` says it again and draws it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from simgpt.api.collected import collecting
from simgpt.question_rows import NAMED
from topologies.files.named_files import file_of, located

if TYPE_CHECKING:
    from simgpt.question import Question
    from simgpt.step import Step
    from simgpt.studies.study import Study

ASKED = "asked"  # in click's context: the question of a command that began with that of a file
# Fields of a question that an answer has elsewhere, or as they were filled in.
SAID_APART = (
    *NAMED,
    *("devices", "batch", "batch_tokens", "plan", "placement", "tokens", "compute"),
    *("set", "model_set"),
)


def asked_of_step(step: Step, **places: Any) -> dict[str, Any]:
    """What an answer about a step was asked."""
    recipe = step.plan.training.recipe
    return asked(step.question, step.job.stack.name, step.job.chosen, recipe, **places)


def asked(
    question: Question, stack: str, chosen: str = "", recipe: str | None = None, **places: Any
) -> dict[str, Any]:
    """What was asked: the command line, the model and machine that it names, digests of files among
    them, what was set of both, the stack and, where the question names none, why it was `chosen`,
    and where ranks land, of which `places` says more."""
    from workload.recipes.table import FP8

    named = question.stack or stack
    given = _command()
    given |= {"model": question.model, "machine": question.machine}
    given |= {"compute": question.compute, "stack": named}
    given |= {"stack_chosen": chosen} if chosen else {}
    given |= {"fp8": recipe == FP8} if recipe is not None else {}
    given |= {"routing": question.routing} if question.routing else {}
    given |= {name: each for name, each in question.given.items() if name not in SAID_APART}
    names = (question.model, question.machine, named, question.routing)
    return {
        "asked": {**given, "files": files_of(names)},
        "settings": dict(question.set),
        "fields": dict(question.model_set),
        "placement": {"policy": question.placement, **places},
    }


def asked_of_study(study: Study) -> dict[str, Any]:
    """The command line, where the study's files lie, and digests of those it names."""
    given = dict.fromkeys(point[key] for point in study.points() for key in NAMED if key in point)
    names = dict.fromkeys(located(name, study.folder) for name in given)
    folder = str(study.folder)
    files = files_of(names)
    return {**_command(), "folder": _as_utf8(folder), "files": files}


def ran() -> dict[str, Any]:
    """What a record says of its question where its own keys say the rest: the command line."""
    return {"asked": _command()}


def _command() -> dict[str, Any]:
    """The command line, and the whole question of one that begins with that of a file."""
    context = click.get_current_context(silent=True)
    question: Question | None = context.meta.get(ASKED) if context is not None else None
    return {"command": command_line()} | ({"question": question.as_json()} if question else {})


def command_line() -> str:
    """The command that runs, or the one that asks as Python did, ready for a shell."""
    asker = collecting()
    words = sys.argv[1:] if asker is None else asker.words
    return _as_utf8(shlex.join(["simgpt", *words]))


def files_of(names: Iterable[str]) -> dict[str, str]:
    """A digest of each file among the names of models and machines."""
    from validation.report.provenance import digest_of

    paths = [path for path in map(file_of, names) if path is not None]
    return {_as_utf8(str(path)): digest_of(path) for path in paths}


def _as_utf8(text: str) -> str:
    """The text, with what of a file's name is no UTF-8 spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
