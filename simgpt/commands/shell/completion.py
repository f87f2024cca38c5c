"""`simgpt completion`: the code by which a shell completes simgpt's command lines."""

from __future__ import annotations

import os

import click

from simgpt import options

VARIABLE = "_SIMGPT_COMPLETE"  # by which click is asked for completions; from the program's name
SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def command(shell: str | None) -> None:
    """Print what makes a shell complete commands, options, models, machines, stacks and files.

    \b
    simgpt completion bash >> ~/.bashrc
    simgpt completion zsh >> ~/.zshrc
    simgpt completion fish > ~/.config/fish/completions/simgpt.fish

    Without SHELL it is that of the variable SHELL of the environment.
    """
    from click.shell_completion import get_completion_class

    found = shell or os.path.basename(os.environ.get("SHELL", ""))
    if found not in SHELLS:
        raise click.UsageError(f"say which shell: {', '.join(SHELLS)}")
    completion = get_completion_class(found)
    assert completion is not None, "click knows all of SHELLS"
    root = click.get_current_context().find_root().command
    options.say(completion(root, {}, "simgpt", VARIABLE).source().strip())
