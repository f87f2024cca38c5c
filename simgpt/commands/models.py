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
        rows = [(key, str(value)) for key, value in _record(gpt).items()]
        options.answer(tables.table(["", ""], rows), _record(gpt), as_json=as_json, output=output)
        return
    every = [options.model_of(preset) for preset in model_names()]
    columns = ["model", "parameters", "layers", "hidden", "heads", "sequence", "vocab"]
    shown = [
        (
            g.name,
            f"{g.parameters / 1e9:.3g} B",
            f"{g.layers}",
            f"{g.hidden}",
            f"{g.heads}",
            f"{g.sequence}",
            f"{g.vocab}",
        )
        for g in every
    ]
    record = {"models": [_record(gpt) for gpt in every]}
    options.answer(tables.table(columns, shown), record, as_json=as_json, output=output)


def _record(gpt: GPT) -> dict[str, Any]:
    return {
        **asdict(gpt),
        "parameters": gpt.parameters,
        "model_flops_per_sequence": gpt.model_flops(1),
    }
