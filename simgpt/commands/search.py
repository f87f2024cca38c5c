"""`simgpt search`: the best plan for a model on so many devices."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from workload.errors import PlanError

if TYPE_CHECKING:
    from simulator.prediction import Prediction
    from simulator.search import Question, State
    from simulator.search.compare import Ranked
    from topologies.machine import Machine
    from topologies.placement import Placement

MOST_WORKERS = 64
NOT_SEARCHED = ("stage_layers", "ends_as_layers", "batch")


@click.command("search")
@click.argument("model")
@click.option("-m", "--machine", required=True, help="A machine's name, or its TOML or JSON file.")
@click.option("-n", "--devices", type=click.IntRange(min=1), required=True, help="Devices to use.")
@click.option("--plan", default="", help="Fields that every plan must have, as in pipe=1,zero=1.")
@click.option("--batch", type=click.IntRange(min=1), help="Sequences per step.")
@click.option("--batch-tokens", type=click.IntRange(min=1), help="Tokens per step instead.")
@click.option(
    "--top", type=click.IntRange(1, 1000), default=3, show_default=True, help="How many plans."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change the machine.")
@click.option("--placement", default="scheduler", show_default=True, help="As for predict.")
@click.option("--memory-front", is_flag=True, help="Also the fastest plans that need less memory.")
@click.option("--exhaustive", is_flag=True, help="Simulate every plan, which proves the answer.")
@click.option(
    "--rank-by",
    type=click.Choice(["time", "axonn"]),
    default="time",
    show_default=True,
    help="axonn: the top grids of AxoNN's communication model, simulated.",
)
@click.option(
    "--time-limit",
    "limit_s",
    type=options.Number(min=0.1, max=options.LONGEST_S),
    help="Seconds after which the best plan so far is the answer, and how far off it may be.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    default=lambda: len(os.sched_getaffinity(0)),
    help="Processes.  [default: one for each core]",
)
@options.answer_options
def command(model: str, machine: str, as_json: bool, output: Path | None, **how: Any) -> None:
    """Find the plan with the fastest step of all that fit.

    \b
    simgpt search gpt-80b -m frontier -n 8192 --batch 8192
    simgpt search gpt-40b -m perlmutter -n 4096 --batch-tokens 16777216 --plan pipe=1 --top 10

    The space has every legal x, y, z, data, pipe, micro_batch, zero, recompute (none, selective,
    full), sequence_parallel, schedule, interleave and overlap; --plan fixes some, and sets other
    fields. Each plan is bounded from below, and simulated unless something faster is known, so the
    answer is the optimum and says so. Stopped early (Ctrl-C or --time-limit) it says how far off
    the best plan so far may be. Where no plan fits, that is the answer, with status 3.
    """
    from simulator.search import Question
    from topologies.policies import parse_placement

    gpt = options.model_of(model)
    batch = options.batch_of(how["batch"], how["batch_tokens"], gpt)
    if batch is None:
        raise click.UsageError("a search needs --batch or --batch-tokens")
    question = Question(gpt, how["devices"], batch, fixed_fields(how["plan"]))
    built = options.machine_of(machine, how["settings"])
    placed = parse_placement(how["placement"], built, how["devices"])
    if how["rank_by"] == "axonn":
        _answer_axonn(question, built, placed, how["top"], as_json=as_json, output=output)
        return
    begun = time.monotonic()
    state = _found(question, built, placed, how)
    front = _memory_front(question, built, placed, how, state) if how["memory_front"] else []
    record = as_record(question, built, state, front) | {"seconds": time.monotonic() - begun}
    options.answer(describe(question, built, state, front), record, as_json=as_json, output=output)
    if not state.found:
        raise SystemExit(3)


def fixed_fields(text: str) -> dict[str, Any]:
    """The fields that a search keeps; a PlanError for those that it cannot."""
    from workload.plan_text import REST, parse_fields

    fixed = parse_fields(text)
    for key in NOT_SEARCHED:
        if key in fixed:
            raise PlanError(
                f"a search cannot keep {key}; "
                + ("use --batch" if key == "batch" else "it splits layers evenly")
            )
    if fixed.get("data") == REST:
        del fixed["data"]
    if ":" in fixed.get("recompute", ""):
        raise PlanError(
            f"a search cannot keep recompute={fixed['recompute']}; use none, selective or full"
        )
    if fixed.get("matmul_forms") == "tuned":
        raise PlanError("a search cannot keep matmul_forms=tuned; tune the plan that it finds")
    return fixed


def _found(
    question: Question, machine: Machine, placement: Placement, how: dict[str, Any]
) -> State:
    from simulator.search import search
    from simulator.search.compare import exhaustive

    if how["exhaustive"]:
        states = exhaustive(question, machine, placement=placement, top=how["top"])
    else:
        states = search(
            question, machine, placement=placement, top=how["top"], workers=how["workers"]
        )
    return watched(states, how["limit_s"])


def watched(states: Iterator[State], limit_s: float | None) -> State:
    """The last state, or the one in which the time is up or somebody stops waiting."""
    from simgpt.progress import Ticker

    begun, state = time.monotonic(), None
    with Ticker() as progress:
        try:
            for state in states:
                progress(_moment(state))
                if limit_s is not None and time.monotonic() - begun > limit_s:
                    break
        except KeyboardInterrupt:
            if state is None or not state.found:
                raise
    assert state is not None, "a search has at least one state"
    return state


def _moment(state: State) -> str:
    best = tables.seconds(state.found[0].step_s) if state.found else "none yet"
    return (
        f"{state.considered:,} plans, {state.simulated:,} simulated, best {best}, "
        f"no plan below {tables.seconds(state.bound_s)}"
    )


def _memory_front(
    question: Question, machine: Machine, placement: Placement, how: dict[str, Any], state: State
) -> list[Prediction]:
    """The fastest plan, then ever again the fastest that needs less than the one before."""
    from simulator.search import search

    front = list(state.found[:1])
    while front and len(front) < how["top"] + 1:
        states = search(
            question,
            machine,
            placement=placement,
            workers=how["workers"],
            capacity_bytes=front[-1].memory.peak_bytes * 9 // 10,
        )
        found = watched(states, how["limit_s"]).found
        if not found:
            break
        front.append(found[0])
    return front


def as_record(
    question: Question, machine: Machine, state: State, front: list[Prediction]
) -> dict[str, Any]:
    """The answer as it stands in JSON."""
    return {
        "model": question.gpt.name,
        "machine": machine.full_name,
        "devices": question.devices,
        "batch": question.batch,
        "plans_considered": state.considered,
        "plans_fitting": state.fitting,
        "plans_simulated": state.simulated,
        "optimal": state.is_optimal,
        "bound_s": state.bound_s,
        "gap": state.gap,
        "plans": [prediction.as_dict() for prediction in state.found],
        "memory_front": [prediction.as_dict() for prediction in front],
    }


def describe(question: Question, machine: Machine, state: State, front: list[Prediction]) -> str:
    """The answer as a person reads it."""
    head = (
        f"{question.gpt.name} on {tables.several(question.devices, 'device')} of "
        f"{machine.full_name}, {tables.several(question.batch, 'sequence')} a step"
    )
    parts = [head, certificate(state)]
    if state.found:
        parts.append(_table("the fastest plans", state.found))
    if front:
        parts.append(_table("the fastest with less and less memory", front))
    return "\n\n".join(parts)


def certificate(state: State) -> str:
    """What is known of the plans that were not simulated."""
    counts = (
        f"{state.considered:,} legal plans, at most {state.fitting:,} of them fit, "
        f"{state.simulated:,} simulated"
    )
    if not state.found:
        return tables.paragraph(
            f"{counts}: " + ("no plan fits" if state.is_optimal else "none found yet")
        )
    if state.is_optimal:
        return tables.paragraph(f"{counts}: no other plan is faster than these")
    return tables.paragraph(
        f"{counts}: stopped early, no plan takes less than {tables.seconds(state.bound_s)}, so the "
        f"best may miss the optimum by {tables.percent(state.gap)}"
    )


def _table(title: str, found: Any) -> str:
    rows = [
        (
            str(prediction.plan),
            tables.seconds(prediction.step_s),
            tables.percent(prediction.breakdown_s["compute"] / prediction.step_s),
            tables.percent(prediction.hfu),
            tables.gib(prediction.memory.peak_bytes),
        )
        for prediction in found
    ]
    return tables.table([title, "step", "compute", "HFU", "memory"], rows)


def _answer_axonn(
    question: Question,
    machine: Machine,
    placement: Placement,
    top: int,
    *,
    as_json: bool,
    output: Path | None,
) -> None:
    from simulator.search.compare import by_axonn, kendall_tau

    ranked = by_axonn(question, machine, placement=placement, top=max(top, 2))
    tau = kendall_tau(ranked)
    record = {
        "kendall_tau": tau,
        "plans": [
            each.prediction.as_dict() | {"axonn_communication_s": each.communication_s}
            for each in ranked
        ],
    }
    options.answer(_ranking(ranked, tau), record, as_json=as_json, output=output)


def _ranking(ranked: list[Ranked], tau: float) -> str:
    rows = [
        (
            str(each.prediction.plan),
            tables.seconds(each.communication_s),
            tables.seconds(each.prediction.step_s),
        )
        for each in ranked
    ]
    title = "grids by AxoNN's model"
    return "\n\n".join(
        [
            tables.table([title, "its communication", "simulated step"], rows),
            f"rank correlation of the two (Kendall's tau): {tau:.2f}",
        ]
    )
