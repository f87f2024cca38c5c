"""Options of a training run: its data, its learning rate, and its evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
DATA = (
    "A text file, Megatron's PREFIX of .bin and .idx, or several of them with weights, as in "
    "a=0.7,b=0.3; default: Python's manual."
)


def data_options(function: Command) -> Command:
    """Give a command --data and --tokenizer."""
    for option in (
        click.option("--data", "text", type=click.Path(), help=DATA),
        click.option(
            "--tokenizer",
            type=click.Path(),
            help="A tokenizer.json of Hugging Face for the text; default: a token for each byte.",
        ),
    ):
        function = option(function)
    return function
