"""`simgpt run --dry`: a plan's program played without its machine, and what is said of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.arguments.goldfish import with_goldfish
from simgpt.invocation import ran
from simgpt.question import Question
from simgpt.running.understood import refuse_others
from simgpt.step import Sources, plan_of_run

if TYPE_CHECKING:
    from executor.dry.rank import PlayedRank
    from executor.dry.stages import PlayedStages
    from workload.gpt import GPT
    from workload.plan import Plan

# What --dry understands; any other option is about values, devices or time, of which it has none.
UNDERSTOOD = (
    *("model", "model_set", "goldfish_k", "goldfish_h", "plan", "ranks", "batch"),
    *("dry", "rank", "as_json", "output"),
)


def dry_run(question: Question, *, as_json: bool, output: Path | None, how: dict[str, Any]) -> None:
    """Play one rank's program and all stages' orders, and say whether they are what the program
    says; a DryRunError, after the answer, if they are not."""
    from executor.errors import DryRunError
    from executor.launching.launch import require_torch
    from workload.lowering import check, lower
    from workload.lowering.four_bits import check_four_bits_of
    from workload.recipes.table import check_runs

    refuse_others(UNDERSTOOD, "with --dry, which computes no values on no device")
    require_torch()
    gpt = with_goldfish(Sources().model(question), how["goldfish_k"], how["goldfish_h"])
    plan = plan_of_run(question, how["ranks"])
    check_runs(plan)
    check(gpt, plan)
    check_four_bits_of(gpt, plan)
    rank = _rank(how["rank"], plan)
    from executor.dry.rank import play_rank
    from executor.dry.stages import play_stages

    played = play_rank(lower(gpt, plan, plan.grid.coordinates(rank)["pp"]), rank)
    stages = play_stages(gpt, plan)
    record = record_of(gpt, plan, played, stages) | ran()
    options.answer(_text(gpt, plan, played, stages), record, as_json=as_json, output=output)
    if played.difference:
        raise DryRunError(f"rank {rank} does not do what its program says: {played.difference}")
    if stages.hang:
        raise DryRunError(f"the stages of {plan} wait for each other: {stages.hang}")


def check_rank_is_dry(how: dict[str, Any]) -> None:
    """Refuse --rank where ranks run for real."""
    if how["rank"] is not None:
        raise click.UsageError("--rank chooses which rank --dry plays; without --dry all ranks run")


def record_of(gpt: GPT, plan: Plan, played: PlayedRank, stages: PlayedStages) -> dict[str, Any]:
    """The JSON record of a dry run."""
    return {
        "model": gpt.name,
        "plan": plan.as_dict(),
        "plan_string": str(plan),
        "ranks": plan.grid.ranks,
        **asdict(played),
        "agrees": not played.difference and not stages.hang,
        "stages": asdict(stages),
    }


def _rank(wanted: int | None, plan: Plan) -> int:
    """The rank to play; by default the first."""
    ranks = plan.grid.ranks
    if wanted is not None and wanted >= ranks:
        raise click.UsageError(f"--rank {wanted}: the plan's ranks are 0 to {ranks - 1}")
    return wanted or 0


def _text(gpt: GPT, plan: Plan, played: PlayedRank, stages: PlayedStages) -> str:
    title = f"{gpt.name} with {plan}: rank {played.rank} of {plan.grid.ranks:,}"
    carried = sum(played.carried.values())
    rows = [
        ("ops in a step", f"{played.ops:,}"),
        ("kernels, each distinct one once", f"{played.kernels:,}"),
        ("collectives and messages", f"{played.calls:,} in {played.groups} groups"),
        ("carried by them", f"{carried / 1e9:,.2f} GB"),
        ("memory of buffers, counted", f"{played.counted_bytes:,} bytes"),
        ("memory of buffers, the program's", f"{played.program_bytes:,} bytes"),
        ("memory with kernels' temporaries", f"{played.most_bytes:,} bytes"),
        ("played in", tables.seconds(played.seconds)),
    ]
    if stages.stages > 1:
        ends = "wait for each other" if stages.hang else "come to the end of the step"
        ends += " with CUDA_MODULE_LOADING=EAGER" if stages.loads_eagerly else ""
        rows.append((f"{stages.stages} stages, {stages.calls:,} calls", ends))
        rows.append(("played in", tables.seconds(stages.seconds)))
    verdict = played.difference or "none, in any op's bytes, shapes, calls and groups"
    body = tables.table(["", f"stage {played.stage}"], rows)
    return "\n\n".join([tables.paragraph(title), body, f"difference from the program: {verdict}"])
