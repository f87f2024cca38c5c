"""The question of a published run: what a user asks to get the validated answer."""

from __future__ import annotations

from typing import Any

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


def question_of_run(run: PublishedRun) -> dict[str, Any]:
    """The fields of the question that predicts a run, as `simgpt/question.py` has them; a
    NoCommandError where there is none."""
    try:
        case, parts = case_of(run), parts_of(run)
    except SimgptError as error:
        raise NoCommandError(str(error)) from None
    if case.scale != 1:
        raise NoCommandError("its batch is not a whole number of micro-batches for every rank")
    variant, environments = environment_of(run)
    return {
        "model": model_text(case.asked),
        "machine": ":".join([parts_text(parts), *filter(None, [variant]), *environments]),
        "devices": run.text("gpus_total"),
        "stack": case.job.stack.name,
        "plan": plan_text(case),
    }


def model_text(gpt: GPT) -> str:
    """The model as a command line gives it: each field that is not at its default."""
    given = [(key, gpt.value(key)) for key in KEYS if key not in LABELS and gpt.is_given(key)]
    return ",".join(f"{name}={text_of(value)}" for name, value in given)


def plan_text(case: Case) -> str:
    """The plan in the words that its case was made of."""
    return ",".join(f"{key}={text_of(value)}" for key, value in case.words.items())
