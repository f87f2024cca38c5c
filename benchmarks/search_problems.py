"""By how much searches miss plans that are known to be good, on forty drawn problems.

Run with `python -m benchmarks.search_problems`. `search_problems.csv` has problems of five kinds,
drawn at random (dense models, experts, long sequences, little memory, slow networks), and the best
plan that the search of commit 398a5ead found for each in 150 s. That search bounded what is only
walked to today as well, where it was asked to: in some problems schedules in a V, all-to-alls
beside other compute, other splits of experts or traded heads, and in all long ones every way to
split sequences. `slower` is the step of today's answer over that of the plan, less one. Each search
takes as many processes as there are cores; all of it takes some fifteen minutes.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks._command import Row, benchmark
from simulator.predict import predict
from simulator.search import SearchProblem, search
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from topologies.machine import Machine
from topologies.machine_files import load_machine, with_settings
from topologies.session import Session
from workload.descriptions.from_table import with_fields
from workload.gpt import GPT, find_model

COLUMNS = (
    "number", "kind", "model", "machine", "devices", "stack", "known_s", "found_s", "slower",
    "proved", "around", "search_s", "plan",
)  # fmt: skip
PROBLEMS = Path(__file__).with_suffix(".csv")
SMALLEST = 5  # the number of a problem that takes a second


@benchmark(*COLUMNS)
@click.option("--only", type=int, multiple=True, help="The number of a problem, from 0 on.")
def main(*, smallest: bool, only: tuple[int, ...]) -> list[Row]:
    """Search for the best plan of each problem."""
    with PROBLEMS.open(encoding="utf-8") as file:
        problems = list(csv.DictReader(file))
    chosen = (SMALLEST,) if smallest else only or range(len(problems))
    rows = [row_of(number, problems[number]) for number in chosen]
    if len(rows) > 1:
        shares = [row["slower"] for row in rows]
        few = sum(share <= 0.01 for share in shares)
        mean = sum(shares) / len(shares)
        most = f"{max(shares):.2%} at most, {mean:.2%} on average"
        click.echo(f"{few} of {len(rows)} answers are at most 1 % slower; {most}")
    return rows


def row_of(number: int, problem: Mapping[str, str]) -> Row:
    """What a search finds, and how long it takes."""
    gpt, machine, stack = model_of(problem), machine_of(problem), load_stack(problem["stack"])
    devices, batch = int(problem["devices"]), int(problem["batch"])
    with Session():
        job = job_of(gpt, problem["plan"], stack, devices=devices, batch=batch)
        known = predict(job.gpt, job.plan, machine, stack=job.stack)
    asked = SearchProblem(gpt, devices, batch, stack=stack)
    began = time.perf_counter()
    *_, answer = search(asked, machine, workers=len(os.sched_getaffinity(0)))
    best = answer.found[0]
    named = {key: problem[key] for key in ("kind", "model", "machine")}
    found: dict[str, Any] = {"devices": devices, "stack": problem["stack"]}
    found |= {"known_s": known.step_s, "found_s": best.step_s}
    found |= {"slower": best.step_s / known.step_s - 1, "proved": answer.is_optimal}
    found |= {"around": answer.around, "search_s": time.perf_counter() - began}
    return {"number": number, **named, **found, "plan": best.plan_text}


def model_of(problem: Mapping[str, str]) -> GPT:
    """The model, with its own length of sequences where the problem has one."""
    gpt = find_model(problem["model"])
    return with_fields(gpt, {"sequence": int(length)}) if (length := problem["sequence"]) else gpt


def machine_of(problem: Mapping[str, str]) -> Machine:
    """The machine, with the problem's settings."""
    machine = load_machine(problem["machine"])
    pairs = (each.partition("=") for each in problem["settings"].split(";") if each)
    return with_settings(machine, {key: value for key, _, value in pairs})


if __name__ == "__main__":
    main()
