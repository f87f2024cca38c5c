"""Whether texts are command lines of simgpt."""

from __future__ import annotations

import shlex

import click

from simgpt.cli import HELP, cli


def is_command(text: str) -> bool:
    """Whether a text is one command line of simgpt and nothing else, as `command_line` writes it:
    a shell that it is pasted into runs no other program, and shows all of it.

    Values are not looked at, for files may be gone since.
    """
    try:
        name, *words = shlex.split(text)
        if name != "simgpt" or not text.isprintable() or shlex.join([name, *words]) != text:
            return False
        return _parses(cli, click.Context(cli, info_name=name, help_option_names=HELP), words)
    except (ValueError, click.UsageError):
        return False


def _parses(command: click.Command, context: click.Context, words: list[str]) -> bool:
    """Whether a command has these options, and takes so many arguments."""
    _, left, _ = command.make_parser(context).parse_args(words)
    if not isinstance(command, click.Group):
        return not left
    inner = command.get_command(context, left[0]) if left else None
    # The context has the parent's names of --help, which click keeps with the command.
    return inner is not None and _parses(inner, click.Context(inner, context, left[0]), left[1:])
