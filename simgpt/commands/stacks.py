"""`simgpt stacks`: the software stacks, or one of them with its source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.invocation import ran

if TYPE_CHECKING:
    from simulator.stacks import Stack

LABEL = 24  # characters of the first column
APART, NOT_TOGETHER = "apart", "not together"


@click.command("stacks")
@click.argument("name", required=False)
@options.answer_options
def command(name: str | None, as_json: bool, output: Path | None) -> None:
    """List the software stacks, or show one with its source.

    \b
    simgpt stacks
    simgpt stacks megatron-core
    simgpt stacks nemo+deepep+graphs=attn

    A stack is what a training framework makes of a plan: the plan that it runs where you do not say
    otherwise, what it can run, which kernels it fuses or makes of several, and how fast these are.
    predict --stack takes one by its name, or a TOML file of your own with base = "megatron-core".
    """
    from simulator.stacks import load_stack, stack_names

    if name is not None:
        stack = load_stack(name)
        return options.answer(
            describe(stack), record(stack) | ran(), as_json=as_json, output=output
        )
    every = [load_stack(each) for each in stack_names()]
    text = tables.table(
        ["stack", "what it is"], [(each.name, _title(each)) for each in every], left=2
    )
    records = {"stacks": [record(each) for each in every]}
    options.answer(text, records | ran(), as_json=as_json, output=output)


def _title(stack: Stack) -> str:
    """What a stack is, or of one with an option what that is."""
    return stack.options.get(stack.name.partition("+")[2], stack.title)


def record(stack: Stack) -> dict[str, Any]:
    """A stack as it stands in JSON."""
    return {
        "name": stack.name,
        "title": stack.title,
        "source": stack.source,
        "plan": dict(stack.plan),
        "vocabulary": dict(stack.vocabulary),
        "kernels": dict(stack.own_kernels),
        "can": dict(stack.can),
        "options": dict(stack.options),
    }


def describe(stack: Stack) -> str:
    """A stack as a person reads it."""
    parts = [f"{stack.name}: {stack.title}", tables.paragraph(stack.source, indent="")]
    sections = {
        "options, behind the name": stack.options,
        "the plan, where you do not say": stack.plan,
        "vocabulary": stack.vocabulary,
        "kernels": stack.own_kernels,
        "what it can run": stack.can,
    }
    for title, section in sections.items():
        rows = [(key, _shown(value)) for key, value in _flat(section)]
        if rows:
            parts.append(tables.table([title, ""], rows, left=2, first=LABEL))
    return "\n\n".join(parts)


def _flat(section: Any) -> list[tuple[str, Any]]:
    from simulator.stacks.apart import words
    from simulator.stacks.where import WHERE, words_of_rule

    rows: list[tuple[str, Any]] = []
    for key, value in section.items():
        if isinstance(value, dict):
            rows += [(f"{key}.{inner}", each) for inner, each in value.items()]
        elif key == APART:
            rows += [(NOT_TOGETHER if not at else "", words(each)) for at, each in enumerate(value)]
        elif key == WHERE:
            rows += map(words_of_rule, value)
        else:
            rows.append((key, value))
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
