"""`--routing-out`: how often a run's tokens chose each expert, as `simgpt predict --routing` reads
it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options

if TYPE_CHECKING:
    from executor.launching.task_specs import Job
    from workload.gpt import GPT

routing_out_option = click.option(
    "--routing-out",
    type=options.NewFile(".json"),
    help="Write how often each expert was chosen, for simgpt predict --routing.",
)


def check_routing_out(gpt: GPT, how: Mapping[str, Any]) -> bool:
    """Whether choices of experts are counted; refused where there are none, or in steps that no
    kernel of ours runs in."""
    path: Path | None = how["routing_out"]
    if path is None:
        return False
    for option in ("trace", "log"):
        options.check_apart(path, how[option], f"--{option}", first="--routing-out")
    if not gpt.moe.experts:
        raise click.UsageError(f"--routing-out counts choices of experts; {gpt.name} has none")
    if how["cuda_graphs"]:
        raise click.UsageError("--routing-out counts step by step; give no --cuda-graphs with it")
    return True


def write_routing(path: Path | None, job: Job, result: Mapping[str, Any]) -> None:
    """Write the choices of all ranks' tokens in the steps of a run."""
    from workload.expert_loads.histogram_file import as_document

    if path is None:
        return
    steps, batch = len(result["losses"]), job.plan.batch
    source = f"simgpt run {job.gpt.name}, {steps} steps of {batch} sequences"
    counts = {int(layer): tuple(own) for layer, own in result["chosen_experts"].items()}
    options.write(path, options.compact(as_document(counts, source)))
    options.note(f"wrote {path}; simgpt predict --routing {path} goes by it")
