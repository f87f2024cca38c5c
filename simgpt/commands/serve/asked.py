"""What the page asks: a question in JSON, whose fields are texts as a person types them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from simgpt.question import BATCHES, Question
from simgpt.question_rows import ROWS, plan_text
from simgpt.step import MEASURED, Sources, Step, step_of
from topologies.errors import SimgptError
from workload.errors import ModelError
from workload.plan_text import REST, plan_words

MOST_CHARACTERS = 4096  # of one field
SEQUENCE = "sequence"  # of the page: tokens of a sequence in place of the model's


class FieldError(click.UsageError):
    """A field of the page whose text says nothing."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field


def asked_of(given: Any) -> Question:
    """The question of the page's JSON, whose empty fields are not given; a FieldError says what is
    wrong with one."""
    if not isinstance(given, dict) or not {"model", "machine"} <= given.keys() <= FIELDS:
        raise click.UsageError(f"a question has the fields {', '.join(sorted(FIELDS))}")
    told = {name: each for name, each in _texts(given).items() if each}
    if sequence := told.pop(SEQUENCE, None):
        told["model_set"] = {**_read("model_set", told.get("model_set", {})), SEQUENCE: sequence}
    for name in ("model", "machine"):
        if name not in told:
            raise FieldError(name, f"give a {name}")
    if told.keys() >= {*BATCHES}:
        raise FieldError("batch", "give sequences per step or tokens per step, not both")
    question = Question(**{name: _read(name, value) for name, value in told.items()})
    if question.compute == MEASURED:
        raise FieldError("compute", "the page times no ops; simgpt predict --compute measured does")
    return question


def _read(name: str, value: Any) -> Any:
    """The value of a field from its text."""
    try:
        return ROWS[name].read(value)
    except ModelError:  # which says more of its fields
        raise
    except SimgptError as error:
        raise FieldError(name, str(error)) from None


FIELDS = {*ROWS, SEQUENCE}


def _texts(given: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of the fields, and of the tables of some."""
    return {
        name: {str(key): _text(name, each) for key, each in value.items()}
        if isinstance(value, dict)
        else _text(name, value)
        for name, value in given.items()
    }


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS or not value.isprintable():
        raise FieldError(
            name, f"the {name} must be one line of at most {MOST_CHARACTERS:,} characters"
        )
    if value.strip().startswith("-"):  # on a command line it would be an option
        raise FieldError(name, f"the {name} must not begin with -")
    return value.strip()


def step_asked(question: Question) -> Step:
    """The step of a question, of which the page says itself what is worth saying."""
    return step_of(question, Sources(tells=False))


def with_plan(question: Question, changes: Mapping[str, Any]) -> Question:
    """The question with other values of some of the plan's keys; data takes what devices are left,
    where their number is given."""
    words = {**plan_words(question.plan), **changes}
    if question.devices is not None:
        words["dp"] = REST
    return question.changed(plan=plan_text(words))
