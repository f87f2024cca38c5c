"""The plans of published runs, by which a search knows what is usual.

`python -m tools.usual_plans` prints the table that `simulator/search` keeps: of each
distinct plan of a source's rows with a plan, held-out rows left out, the stack's family, how large
the model, the sequence and the job are, and how the plan splits them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

import click

from simulator.search.usual import COLUMNS, SPLITS, PublishedPlan
from topologies.errors import SimgptError
from topologies.session import in_session
from validation.moe.rows import read_moe_runs
from validation.published.case import case_as_read
from validation.published.outcome import held_out
from validation.published.runs import PublishedRun, read_runs
from workload.overlaps import OVERLAPS
from workload.plan import text_of
from workload.stages import nearly_even

BILLION = 1e9


def table(runs: Iterable[PublishedRun]) -> str:
    """The distinct plans of rows that are not held out, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    kept = (run for run in runs if not held_out(run.id))
    rows = {tuple(plan): None for run in kept if (plan := plan_of(run)) is not None}
    writer.writerows(sorted(rows, key=lambda row: tuple(map(str, row))))
    return text.getvalue()


def plan_of(run: PublishedRun) -> PublishedPlan | None:
    """The plan of a row and what it was for; None where it is not known."""
    try:
        job = case_as_read(run).job
    except SimgptError:
        return None
    gpt, plan = job.gpt, job.plan
    even = nearly_even(gpt.layers, plan.pp * plan.vpp)
    sizes = {key: plan.value(key) for key in SPLITS}
    return PublishedPlan(
        run.source,
        job.stack.family or job.stack.name,
        float(f"{gpt.parameters / BILLION:.3g}"),
        gpt.moe.experts,
        gpt.sequence,
        plan.grid.ranks,
        beside="+".join(switch for switch in plan.training.overlap if switch not in OVERLAPS),
        stage_layers=""
        if plan.pipeline.stage_layers in ((), even)
        else text_of(plan.pipeline.stage_layers),
        **sizes,
    )


@click.command()
@in_session
def main() -> None:
    """Print the table."""
    print(table([*read_runs(), *read_moe_runs()]), end="")


if __name__ == "__main__":
    main()
