"""The MODEL of a command, and `--model-set`, which changes it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import click

from simgpt.arguments.tokens import as_tokens
from simgpt.options import note
from workload.descriptions.described import Described
from workload.descriptions.fields import field_value
from workload.descriptions.from_table import with_fields
from workload.descriptions.read import described_model
from workload.gpt import GPT

LABELS = ("name", "source")  # fields that say nothing of the model's shape

model_set_option = click.option(
    "--model-set",
    "model_fields",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change the model: sequence=4096. (MODEL: a preset, fields, or a file; docs/models.md)",
)

routing_option = click.option(
    "--routing",
    metavar="FILE",
    help="How often each expert is chosen, measured (simgpt run --routing-out, or docs/models.md); "
    "default: all equally often.",
)


def model_of(text: str, settings: tuple[str, ...] = (), *, tells: bool = True) -> GPT:
    """The model of a MODEL argument with the fields of `--model-set`; unless it is told not to, it
    says on stderr what the description leaves open or says beyond the model."""
    described, given = described_model(text), fields_of(settings)
    gpt = with_fields(described.gpt, given) if given else described.gpt
    if tells:
        tell_notes(described, gpt, given)
    return gpt


def routed_model(gpt: GPT, file: str | None) -> GPT:
    """The model with the histogram of `--routing`, if one is given."""
    from workload.expert_loads.histogram_file import read_routed

    return gpt if file is None else read_routed(gpt, file)


def tell_notes(described: Described, gpt: GPT, given: Collection[str]) -> None:
    """Say on stderr what is worth saying of a description once `given` fields are set."""
    for text in described.notes_on(gpt, given):
        note(text)


def fields_of(settings: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a model and their values, from the words of `--model-set`."""
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key or not value:
            raise click.UsageError(f"--model-set {setting}: write key=value, as in sequence=4096")
        if key in LABELS:
            raise click.UsageError(f"--model-set {key}: a model's {key} is not set, but its shape")
        if key in found:
            raise click.UsageError(f"--model-set {key} stands twice")
        found[key] = field_value(key, as_tokens(key, value))
    return found
