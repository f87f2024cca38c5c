"""What the page asks, as words of `simgpt predict`: they are shown to copy, and parsed as such."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import click

from simgpt.invocation import HELP
from simgpt.step_options import StepQuestion, question_of, step_of_words
from topologies.records import record
from workload.plan import text_of
from workload.plan_text import REST, plan_words

MOST_CHARACTERS = 4096  # of one field
OPTIONS = {
    "machine": "-m",
    "devices": "-n",
    "stack": "--stack",
    "plan": "--plan",
    "batch": "--batch",
    "batch_tokens": "--batch-tokens",
    "sequence": "--model-set",
}
USUAL_STACK = "simgpt"
COMMAND = "simgpt predict"


@record(kw_only=True)
class Asked:
    """The texts of the page's fields; an empty one leaves its option out.

    `plan` has the keys of a plan, `sequence` tokens of a sequence instead of the model's.
    """

    model: str
    machine: str
    devices: str = ""
    stack: str = ""
    plan: str = ""
    batch: str = ""
    batch_tokens: str = ""
    sequence: str = ""

    @property
    def words(self) -> list[str]:
        """The words after `simgpt predict`."""
        found = [self.model]
        for field, option in OPTIONS.items():
            value = getattr(self, field)
            if value and (field, value) != ("stack", USUAL_STACK):
                found += [option, f"sequence={value}" if field == "sequence" else value]
        return found

    @property
    def command(self) -> str:
        """The command line, ready for a shell."""
        return f"{COMMAND} {shlex.join(self.words)}"

    def question(self) -> StepQuestion:
        """The step that the command line asks for, with the errors of the command line."""
        from simgpt.cli import cli

        parent = click.Context(cli, info_name="simgpt", **cli.context_settings)
        how = step_of_words(self.words, parent, help_option_names=HELP)
        return question_of(how["model"], how["machine"], how, tells=False)

    def changed(self, changes: Mapping[str, Any]) -> Asked:
        """The page's texts with other values of some of the plan's keys; data takes what devices
        are left, where their number is given."""
        words = plan_words(self.plan) | {key: text_of(value) for key, value in changes.items()}
        if self.devices:
            words["dp"] = REST
        return replace(self, plan=",".join(f"{key}={value}" for key, value in words.items()))


def asked_of(given: Any) -> Asked:
    """The page's fields from its JSON; a UsageError says what is wrong with one."""
    names = [field.name for field in fields(Asked)]
    if not isinstance(given, dict) or not {"model", "machine"} <= given.keys() <= set(names):
        raise click.UsageError(f"a question has the fields {', '.join(names)}")
    texts: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(value, str) or len(value) > MOST_CHARACTERS or not value.isprintable():
            raise FieldError(
                name, f"the {name} must be one line of at most {MOST_CHARACTERS:,} characters"
            )
        texts[name] = value.strip()
        if texts[name].startswith("-"):  # on a command line it would be an option
            raise FieldError(name, f"the {name} must not begin with -")
    for name in ("model", "machine"):
        if not texts[name]:
            raise FieldError(name, f"give a {name}")
    return Asked(**texts)


class FieldError(click.UsageError):
    """A field of the page that cannot be a word of a command line."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field
