"""The command line: one lazily imported module per command, errors as one sentence."""

from __future__ import annotations

import importlib
import sys

import click

from topologies.errors import SimgptError

COMMANDS = {
    "predict": ("simgpt.commands.predict", "Predict one training step of a model on a machine."),
    "run": (
        "simgpt.commands.run",
        "Train for real under the same plan, predicted beside measured.",
    ),
    "calibrate": ("simgpt.commands.calibrate", "Measure this machine into a file for predict -m."),
    "validate": ("simgpt.commands.validate", "Compare predictions with measurements."),
    "models": ("simgpt.commands.models", "List the model presets, or show one."),
    "machines": ("simgpt.commands.machines", "List the machines, or show one with its sources."),
}


class LazyGroup(click.Group):
    """Commands by name; a command's module is imported when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[name][0])
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="simgpt")
def cli() -> None:
    """How long will one training step of this GPT take, split this way, on this machine?

    \b
    simgpt predict gpt-80b -m frontier -n 8192 --plan z=64,data=rest,recompute=full --batch 8192
    simgpt run tiny-2m --plan data=2 --ranks 2 --steps 20
    """


def main() -> None:
    """The entry point: runs the command line, and turns an error into a sentence and a status."""
    try:
        cli(prog_name="simgpt")
    except SimgptError as error:
        click.echo(f"simgpt: {error}", err=True)
        sys.exit(error.exit_code)
