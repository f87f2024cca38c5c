"""Fill in what `simgpt compare` was not given, from the arguments that the log contains."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpt.question import Question
from simgpt.question_rows import ROWS
from simgpt.running.understood import GIVEN
from topologies.errors import SimgptError

if TYPE_CHECKING:
    from simgpt.frameworks.imported_job import ImportedJob

SAID_BY_LOGS = (
    "model",
    "model_set",
    "plan",
    "batch",
    "batch_tokens",
    "devices",
    "stack",
    "routing",
)
MOST_SAID = 5  # settings of the log that are not carried over


def completed_by_log(question: Question, log: Path) -> tuple[Question, tuple[str, ...]]:
    """The user's question, completed from the log, and sentences on which fields come from there. A
    FrameworkError says what neither gives."""
    from simgpt.frameworks.imported_job import Instead
    from simgpt.frameworks.logs.logged_job import NoArgumentsError, job_of_log
    from simulator.stacks.stack import EXECUTOR
    from validation.jobs.reading import is_run_of_simgpt

    ran_here = is_run_of_simgpt(log)
    if not question.stack and ran_here:
        question = replace(question, stack=EXECUTOR.name)
    source = click.get_current_context().get_parameter_source
    given = {name for name in ROWS if source(name) in GIVEN}
    if question.model and "plan" in given:
        return question, ()
    instead = Instead(question.stack or None, question.batch)
    try:
        job = job_of_log(
            log, model=question.model or None, devices=question.devices, instead=instead
        )
    except NoArgumentsError:
        if not question.model:
            raise
        return question, ()
    return _completed(question, job, given), tuple(_remarks(job, given))


def log_alone(log: Path, question: Question) -> Question | None:
    """The question of the log's arguments alone, on the machine and placement of another one; None
    without any, or if it cannot be predicted."""
    from simgpt.frameworks.logs.logged_job import job_of_log

    try:
        job = job_of_log(log)
    except SimgptError:
        return None
    kept = {*ROWS} - {*SAID_BY_LOGS}
    own = {name: getattr(question, name) for name in kept}
    return _completed(Question(**own), job, kept)


def _completed(question: Question, job: ImportedJob, given: Collection[str]) -> Question:
    """A question with what a log says of all fields that are not given."""
    of_log = job.question
    told = {name: each for name, each in of_log.given.items() if name not in given}
    told["model_set"] = {**of_log.model_set, **question.model_set}
    if "batch_tokens" in given:
        told["batch"] = None
    return replace(question, **told)


def _remarks(job: ImportedJob, given: Collection[str]) -> list[str]:
    from simgpt.frameworks.logs.logged_job import titles_of

    names = ("model", "plan", "batch", "devices", "stack")
    own = [name for name in names if name not in given]
    frameworks = titles_of(job)
    listed = f"{', '.join(own[:-1])} and {own[-1]}" if len(own) > 1 else "".join(own)
    said = [f"{listed} from the arguments of {frameworks} in the log"]
    known = [each for each in job.changes if each.name not in job.unknown]
    said += [f"{each}: {each.why}" for each in known[:MOST_SAID]]
    if len(known) > MOST_SAID:
        said.append(f"and {len(known) - MOST_SAID} more settings that simgpt does not carry over")
    return said
