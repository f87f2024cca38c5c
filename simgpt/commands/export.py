"""`simgpt export`: a plan as another framework's settings."""

from __future__ import annotations

from typing import Any

import click

from simgpt import options
from simgpt.invocation import ran
from simgpt.question import Question
from simgpt.question_options import asks

FRAMEWORKS = ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "axonn")


@click.command("export")
@asks(
    *("model", "model_set", "devices", "stack", "plan", "batch", "batch_tokens"),
    unheeded=("machine", "set", "routing", "placement", "compute", "tokens"),
    plan={"default": None, "required": True, "help": "The plan, as predict takes it."},
    devices={"help": "Devices that dp=rest fills."},
    stack={"help": "Whose defaults hold where the plan says nothing: simgpt stacks."},
)
@click.option(
    "--to", "framework", type=click.Choice(FRAMEWORKS), required=True, help="Whose settings."
)
@options.answer_options
def command(question: Question, framework: str, **how: Any) -> None:
    """Print another framework's settings for a plan.

    \b
    simgpt export llama-3.1-8b --plan tp=2,dp=rest,zero=1 -n 64 --batch 128 --to megatron
    simgpt export llama-3.1-70b --plan zero=3,dp=256 --batch 512 --to torchtitan -o train.toml

    What the framework has no setting for is refused by its name; what it is told elsewhere is said
    on stderr. Data, tokenizer, learning rate and all else that a step's time does not depend on is
    yours to add.
    """
    from simgpt.frameworks.exporting import exported
    from simgpt.frameworks.rendering import rendered

    found = exported(question, framework)
    for text in found.notes:
        options.note(text)
    record = {
        "framework": framework,
        "devices": found.devices,
        "settings": dict(found.settings),
        "notes": list(found.notes),
    }
    text = rendered(found)
    options.answer(text, record | ran(), as_json=how["as_json"], output=how["output"], is_file=True)
