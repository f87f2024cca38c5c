"""Options that several commands share, and how a command's answer leaves it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from topologies.load import load_machine, with_settings
from topologies.machine import Machine, machine_from_dict
from workload.errors import PlanError
from workload.gpt import GPT, find_model, read_model
from workload.plan import Plan, parse_plan

Command = TypeVar("Command", bound=Callable[..., Any])


def answer_options(function: Command) -> Command:
    """Give a command --json and -o."""
    function = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(
        function
    )
    output = click.Path(dir_okay=False, path_type=Path)
    return click.option("-o", "--output", type=output, help="Write the answer to a file.")(function)


def answer(text: str, record: dict[str, Any], *, as_json: bool, output: Path | None) -> None:
    """Print a command's answer, as text or as its JSON record, or write it to a file."""
    content = json.dumps(record, indent=2) if as_json else text.rstrip("\n")
    if output is None:
        click.echo(content)
    else:
        write(output, content + "\n")
        note(f"wrote {output}")


def write(path: Path, content: str) -> None:
    """Write a file; a path that cannot be written is the user's mistake, said in one sentence."""
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot write {path}: {error.strerror}") from None


def note(text: str) -> None:
    """Say something that is not the answer: on stderr."""
    click.echo(text, err=True)


def model_of(name_or_path: str) -> GPT:
    """The preset of that name, or the model that a TOML file describes."""
    return (
        read_model(Path(name_or_path))
        if name_or_path.endswith(".toml")
        else find_model(name_or_path)
    )


def machine_of(name_or_path: str, settings: tuple[str, ...] = ()) -> Machine:
    """The machine of that name or file, with `key=value` settings applied."""
    changes: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set {setting}: write key=value, as in device.launch='5 us'")
        changes[key] = _literal(value)
    machine = load_machine(name_or_path)
    return with_settings(machine, changes) if changes else machine


def plan_of(text: str, *, devices: int | None, batch: int | None) -> Plan:
    """The plan from its text, or from a TOML or JSON file of the same keys."""
    if not text.endswith((".toml", ".json")):
        return parse_plan(text, devices=devices, batch=batch)
    try:
        content = Path(text).read_text(encoding="utf-8")
        table = json.loads(content) if text.endswith(".json") else tomllib.loads(content)
    except OSError as error:
        raise PlanError(f"cannot read the plan {text}: {error.strerror}") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{text} is no plan: {error}") from None
    if not isinstance(table, dict):
        raise PlanError(f"{text} is no plan: it should be a table of keys such as x, z and data")
    return parse_plan(table, devices=devices, batch=batch)


def batch_of(batch: int | None, batch_tokens: int | None, gpt: GPT) -> int | None:
    """Sequences per step from either way of saying it."""
    if batch_tokens is None:
        return batch
    if batch is not None:
        raise click.UsageError("give --batch or --batch-tokens, not both")
    sequences, rest = divmod(batch_tokens, gpt.sequence)
    if rest or sequences < 1:
        raise PlanError(
            f"--batch-tokens {batch_tokens} is not a whole number of sequences of "
            f"{gpt.sequence} tokens; nearest: {max(sequences, 1) * gpt.sequence}"
        )
    return sequences


def _literal(value: str) -> object:
    """A setting's value: a number or list where it reads as one in TOML, else its text."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value


def compact(record: dict[str, Any]) -> str:
    """JSON on one line, for files that programs read."""
    return json.dumps(record, separators=(",", ":")) + "\n"


def check_machine(document: dict[str, Any]) -> Machine:
    """The machine of a document that was just made."""
    return machine_from_dict(document, "calibration")
