"""Options that one way of `simgpt run` understands, and all others, which it refuses."""

from __future__ import annotations

from collections.abc import Collection

import click
from click.core import ParameterSource

# Where values come from that the user gives: words, keywords of Python, and a file of --question.
GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def refuse_others(understood: Collection[str], why: str) -> None:
    """Refuse what was given on the command line and is not understood; `why` ends the sentence
    after "has no effect"."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) in GIVEN
        if given and name not in understood:
            raise click.UsageError(f"{parameter.opts[0]} has no effect {why}; leave it out")
