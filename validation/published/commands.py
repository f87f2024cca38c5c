"""The `simgpt predict` of a published run: what a user asks to get the validated answer."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from topologies.errors import SimgptError
from topologies.parts_text import parts_text
from validation.published.case import Case, case_of
from validation.published.run_machine import environment_of, parts_of
from validation.published.runs import PublishedRun
from workload.gpt import GPT
from workload.model.fields import KEYS
from workload.plan import text_of

LABELS = ("name", "source")  # of a model, which change no prediction


class NoCommandError(Exception):
    """A run that no command line stands for; the text says why."""


def command_of(run: PublishedRun) -> list[str]:
    """The words of the command that predicts a run; a NoCommandError where there is none."""
    try:
        case, parts = case_of(run), parts_of(run)
    except SimgptError as error:
        raise NoCommandError(str(error)) from None
    if case.scale != 1:
        raise NoCommandError("its batch is not a whole number of micro-batches for every rank")
    variant, environments = environment_of(run)
    machine = ":".join([parts_text(parts), *filter(None, [variant]), *environments])
    words = ["simgpt", "predict", model_text(case.asked), "-m", machine]
    words += ["-n", run.text("gpus_total"), "--stack", case.job.stack.name]
    return [*words, "--plan", plan_text(case)]


def commands(runs: Sequence[PublishedRun]) -> Iterator[str]:
    """A line for each run: its command, ready for a shell, or a comment that says why there is
    none."""
    for run in runs:
        try:
            yield f"{shlex.join(command_of(run))}  # {run.id}"
        except NoCommandError as error:
            yield f"# {run.id}: {error}"


def model_text(gpt: GPT) -> str:
    """The model as a command line gives it: each field that is not at its default."""
    given = [(key, gpt.value(key)) for key in KEYS if key not in LABELS and gpt.is_given(key)]
    return ",".join(f"{name}={text_of(value)}" for name, value in given)


def plan_text(case: Case) -> str:
    """The plan in the words that its case was made of."""
    return ",".join(f"{key}={text_of(value)}" for key, value in case.words.items())
