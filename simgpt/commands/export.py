"""`simgpt export`: a plan as another framework's settings."""

from __future__ import annotations

from typing import Any

import click

from simgpt import options
from simgpt.arguments.model import model_of, model_set_option
from simgpt.invocation import ran

FRAMEWORKS = ("megatron", "megatron-bridge", "torchtitan", "deepspeed", "axonn")


@click.command("export")
@click.argument("model")
@click.option("--plan", "-p", required=True, help="The plan, as predict takes it.")
@click.option(
    "--to", "framework", type=click.Choice(FRAMEWORKS), required=True, help="Whose settings."
)
@click.option("-n", "--devices", type=options.DEVICES, help="Devices that dp=rest fills.")
@click.option("--batch", "-b", type=options.SEQUENCES, help="Sequences per step.")
@click.option("--batch-tokens", type=options.BATCH_TOKENS, help=options.BATCH_TOKENS_HELP)
@click.option("--stack", help="Whose defaults hold where the plan says nothing: simgpt stacks.")
@model_set_option
@options.answer_options
def command(model: str, framework: str, **how: Any) -> None:
    """Print another framework's settings for a plan.

    \b
    simgpt export llama-3.1-8b --plan tp=2,dp=rest,zero=1 -n 64 --batch 128 --to megatron
    simgpt export llama-3.1-70b --plan zero=3,dp=256 --batch 512 --to torchtitan -o train.toml

    What the framework has no setting for is refused by its name; what it is told elsewhere is said
    on stderr. Data, tokenizer, learning rate and all else that a step's time does not depend on is
    yours to add.
    """
    from simgpt.frameworks.exporting import Asked, exported
    from simgpt.frameworks.rendering import rendered
    from workload.descriptions.read import described_model

    gpt = model_of(model, how["model_fields"])
    batch = options.batch_of(how["batch"], how["batch_tokens"], gpt, how["devices"])
    plan, beyond = options.plan_table(how["plan"]), described_model(model).beyond
    asked = Asked(gpt, plan, how["devices"], batch, beyond)
    found = exported(asked, framework, how["stack"])
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
