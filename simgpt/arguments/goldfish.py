"""`--goldfish-k` and `--goldfish-h`: Goldfish loss, for commands that train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from workload.descriptions.from_table import with_fields
from workload.gpt import GPT
from workload.model.fields import MOST

Command = TypeVar("Command", bound=Callable[..., Any])


def goldfish_options(function: Command) -> Command:
    """Give a command that trains --goldfish-k and --goldfish-h."""
    function = click.option(
        "--goldfish-h",
        type=click.IntRange(1, MOST["goldfish_h"]),
        help="Tokens before it by whose hash a token is left out; default: 13.",
    )(function)
    return click.option(
        "--goldfish-k",
        type=click.IntRange(2, MOST["goldfish_k"]),
        help="Goldfish loss: leave one token in so many out of the loss.",
    )(function)


def with_goldfish(gpt: GPT, k: int | None, h: int | None) -> GPT:
    """The model with these options' loss; one that says so itself keeps what they leave open."""
    given = {"goldfish_k": k, "goldfish_h": h}
    changed = {key: value for key, value in given.items() if value is not None}
    if h is not None and not (k or gpt.goldfish_k):
        raise click.UsageError(f"--goldfish-h {h} has no effect without --goldfish-k")
    return with_fields(gpt, changed) if changed else gpt
