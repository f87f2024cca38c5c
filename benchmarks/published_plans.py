"""Where the plans of ten published recipes stand in the answers of searches for their questions.

Run with `python -m benchmarks.published_plans`. Each search has the recipe's model, machine,
devices, batch and stack, and keeps what is trained as it was; published plans that split a model as
the recipe does are not among those from which it sets out. `published_s` is what is predicted of
the recipe's own plan, `slower` that over the best plan found, less one; `rank` says how many
families of plans have a faster one than the recipe's plan, plus one. It takes some ten minutes.
"""

from __future__ import annotations

import os
import time
from typing import Any
from unittest import mock

from benchmarks._command import Row, benchmark
from simulator.predict import predict
from simulator.search import SearchProblem, search, usual
from simulator.search.families import family_of
from topologies.session import Session
from validation.moe.rows import read_moe_runs
from validation.published.case import case_as_read
from validation.published.run_machine import machine_of
from validation.published.runs import PublishedRun, read_runs
from workload.plan import Plan

COLUMNS = (
    "recipe", "model", "devices", "stack", "family", "published_s", "best_family", "best_s",
    "slower", "rank", "usual", "search_s", "plan", "best_plan",
)  # fmt: skip
RECIPES = (
    *("dgxc-023", "mbridge-041", "kwai-026", "titan-011", "mpt-001", "jupiter-059"),
    *("folding-022", "mbridge-moe-020", "primus-moe-003", "nemo-long-b200-128k"),
)
SMALLEST = ("mpt-001",)
AXES = ("tp", "y", "z", "pp", "vpp", "cp", "ep", "etp")
TRAINED = ("precision", "recipe", "gradients", "moments", "master", "attention", "optimizer")


@benchmark(*COLUMNS)
def main(*, smallest: bool) -> list[Row]:
    """Search for a better plan than each recipe's."""
    runs = {run.id: run for run in (*read_runs(), *read_moe_runs())}
    return [row_of(runs[name]) for name in (SMALLEST if smallest else RECIPES)]


def row_of(run: PublishedRun) -> Row:
    """A recipe's plan beside what a search finds."""
    job, machine = case_as_read(run).job, machine_of(run)
    with Session():
        own = predict(job.gpt, job.plan, machine, stack=job.stack)
    problem = SearchProblem(
        job.gpt, job.plan.grid.ranks, job.plan.batch, trained(job.plan), stack=job.stack
    )
    others = tuple(each for each in usual.published_plans() if not splits_alike(each, job.plan))
    began = time.perf_counter()
    with mock.patch.object(usual, "published_plans", return_value=others):
        *_, answer = search(problem, machine, workers=len(os.sched_getaffinity(0)))
    search_s, best = time.perf_counter() - began, answer.found[0]
    faster = [name for name, each in answer.families.items() if each.step_s < own.step_s]
    return {
        "recipe": run.id,
        "model": job.gpt.name,
        "devices": job.plan.grid.ranks,
        "stack": job.stack.name,
        "family": family_of(job.plan),
        "published_s": own.step_s,
        "best_family": family_of(best.plan),
        "best_s": best.step_s,
        "slower": own.step_s / best.step_s - 1,
        "rank": 1 + len({*faster} - {family_of(job.plan)}),
        "usual": " ".join(usual.usual_families(problem)),
        "search_s": search_s,
        "plan": own.plan_text,
        "best_plan": best.plan_text,
    }


def splits_alike(published: usual.PublishedPlan, plan: Plan) -> bool:
    """Whether a published plan has the axes of a recipe's."""
    return all(getattr(published, key) == getattr(plan, key) for key in AXES)


def trained(plan: Plan) -> dict[str, Any]:
    """What of a plan says what is trained, where it is not as usual."""
    return {key: plan.value(key) for key in TRAINED if plan.is_given(key)}


if __name__ == "__main__":
    main()
