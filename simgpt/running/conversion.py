"""`simgpt run --steps 0`: published weights written anew, in another precision or other files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.invocation import ran
from simgpt.question import USUAL_PLAN, Question
from simgpt.running.understood import refuse_others
from simgpt.running.weights import check_weights, exporting
from simgpt.step import Sources, plan_table
from workload.plan_text import parse_fields

if TYPE_CHECKING:
    from executor.published.conversion import Converted
    from workload.gpt import GPT

# What a conversion understands; any other option is about training.
UNDERSTOOD = (
    *("model", "model_set", "plan", "steps", "from_weights", "export_weights"),
    *("as_json", "output"),
)
PRECISION = "precision"


def convert_weights(
    question: Question, *, as_json: bool, output: Path | None, how: dict[str, Any]
) -> None:
    """Write the weights of one folder into another, with a config, in this process alone."""
    from executor.launching.launch import require_torch
    from executor.launching.launch_env import RankInfo

    starts, leaves = how["from_weights"], how["export_weights"]
    _check_options(starts, leaves)
    precision = _precision(question.plan)
    require_torch()
    info = RankInfo.from_environment(os.environ)
    if info is not None and info.rank:
        return
    gpt = Sources(tells=False).model(question)
    check_weights(gpt, starts, leaves, info)
    from executor.published.conversion import convert

    with exporting(leaves, info):
        found = convert(gpt, Path(starts), Path(leaves), precision)
    record = _record(gpt, starts, leaves, precision, found) | ran()
    options.answer(_text(record), record, as_json=as_json, output=output)


def _check_options(starts: str | None, leaves: str | None) -> None:
    """Refuse what has no effect, and weights that are not named."""
    if starts is None or leaves is None:
        raise click.UsageError(
            "--steps 0 converts published weights: give --from-weights and --export-weights"
        )
    refuse_others(UNDERSTOOD, "with --steps 0, which trains nothing")


def _precision(plan: str) -> str:
    """The precision to write in: that of the plan, of which nothing else has an effect."""
    given = {} if plan == USUAL_PLAN else parse_fields(plan_table(plan))
    fields = {PRECISION: "bf16"} | given
    if others := [key for key in fields if key != PRECISION]:
        raise click.UsageError(
            f"--plan {others[0]} has no effect with --steps 0, which splits nothing; of a plan it "
            "takes precision alone"
        )
    return str(fields[PRECISION])


def _record(gpt: GPT, starts: str, leaves: str, precision: str, found: Converted) -> dict[str, Any]:
    return {
        "model": gpt.name,
        "parameters": gpt.parameters,
        "precision": precision,
        "from_weights": starts,
        "exported_weights": leaves,
        "files": list(found.files),
        "bytes": found.nbytes,
    }


def _text(record: dict[str, Any]) -> str:
    facts = [
        ("parameters", f"{record['parameters']:,}"),
        ("precision", record["precision"]),
        ("from", record["from_weights"]),
        ("into", record["exported_weights"]),
        ("files", ", ".join(record["files"])),
        ("bytes", tables.gib(record["bytes"])),
    ]
    return f"{record['model']}\n\n" + tables.table([], facts, left=2)
