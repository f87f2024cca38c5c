"""`simgpt models`: the presets."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from simgpt import options, tables
from workload.gpt import GPT, model_names


@click.command("models")
@click.argument("name", required=False)
@options.answer_options
def command(name: str | None, as_json: bool, output: Path | None) -> None:
    """List the model presets, or show one.

    \b
    simgpt models
    simgpt models gpt-80b --json
    """
    if name is not None:
        gpt = options.model_of(name)
        options.answer(_describe(gpt), _record(gpt), as_json=as_json, output=output)
        return
    every = [options.model_of(preset) for preset in model_names()]
    columns = ["model", "parameters", "layers", "hidden", "heads", "sequence", "vocab"]
    shown = [
        (
            gpt.name,
            tables.count(gpt.parameters),
            *(f"{size:,}" for size in (gpt.layers, gpt.hidden, gpt.heads, gpt.sequence, gpt.vocab)),
        )
        for gpt in every
    ]
    record = {"models": [_record(gpt) for gpt in every]}
    options.answer(tables.table(columns, shown), record, as_json=as_json, output=output)


def _describe(gpt: GPT) -> str:
    facts = [
        ("parameters", f"{tables.count(gpt.parameters)} ({gpt.parameters:,})"),
        ("layers", f"{gpt.layers:,}"),
        ("hidden", f"{gpt.hidden:,}"),
        ("heads", f"{gpt.heads:,} of {gpt.hidden // gpt.heads:,}"),
        ("ffn", f"{gpt.ffn:,}"),
        ("sequence", f"{gpt.sequence:,}"),
        ("vocab", f"{gpt.vocab:,}, {'tied' if gpt.tied else 'not tied'} to the classifier"),
        ("model FLOPs per sequence", f"{gpt.model_flops(1):.4g}"),
        ("source", gpt.source or "-"),
    ]
    return f"{gpt.name}\n\n" + tables.table([], facts, left=2)


def _record(gpt: GPT) -> dict[str, Any]:
    return {
        **asdict(gpt),
        "parameters": gpt.parameters,
        "model_flops_per_sequence": gpt.model_flops(1),
    }
