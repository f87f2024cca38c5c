"""What a shell offers for an argument: names of models, machines and stacks, and files."""

from __future__ import annotations

from typing import Any

import click

OF_OPTIONS = {"--machine": "machines", "--stack": "stacks", "--plan": ""}
OF_COMMANDS = ("models", "machines", "stacks")  # whose argument NAME is one of these


class Named(click.ParamType[str]):
    """A text that may be a name of one kind, `models`, `machines` or `stacks`, or a file."""

    name = "text"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.kind and value == "":
            self.fail('"" names nothing', param, ctx)
        return click.STRING.convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """The names that begin like this, and what makes the shell add files."""
        from click.shell_completion import CompletionItem

        names = [name for name in _names(self.kind) if name.startswith(incomplete.lower())]
        # Files first: on their item click's code for bash drops what it has collected.
        return [CompletionItem(incomplete, type="file"), *map(CompletionItem, names)]


def _names(kind: str) -> list[str]:
    if kind == "models":
        from workload.gpt import model_names

        return list(model_names())
    if kind == "machines":
        from topologies.shipped import machine_names

        return machine_names()
    if kind == "stacks":
        from simulator.stacks import stack_names

        return list(stack_names())
    return []


def completed(command: click.Command) -> click.Command:
    """The command whose texts that name a model, a machine, a stack or a file are completed."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            completed(each)
    for param in command.params:
        kind = _kind(param, command)
        if kind is not None and param.type is click.STRING:
            param.type = Named(kind)
    return command


def _kind(param: click.Parameter, command: click.Command) -> str | None:
    """What a parameter names; None where it is no name, the empty text where it is a file."""
    if isinstance(param, click.Argument):
        if param.name == "model":
            return "models"
        return command.name if param.name == "name" and command.name in OF_COMMANDS else None
    return next((OF_OPTIONS[text] for text in param.opts if text in OF_OPTIONS), None)
