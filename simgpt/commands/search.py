"""`simgpt search`: the best plan for a model on so many devices."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options
from simgpt.found import as_record, describe, describe_ranking, value_of
from topologies.errors import SimgptError

if TYPE_CHECKING:
    from simulator.prediction import Prediction
    from simulator.search import Question, State
    from topologies.machine import Machine
    from topologies.placement import Placement
    from workload.gpt import GPT

MOST_WORKERS = 64
FRONT = 4  # plans with less memory than the best one


class DeviceCounts(click.ParamType[tuple[int, ...]]):
    """Numbers of devices: `512,1024`."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(int(word) for word in str(value).split(","))
        except ValueError:
            found = (0,)
        if min(found) < 1:
            self.fail(f"{value} is no list of numbers of devices, as in 512,1024", param, ctx)
        return found


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
@click.option(
    "--objective",
    type=click.Choice(["time", "node-hours", "energy"]),
    default="time",
    show_default=True,
    help="What the best plan is best in.",
)
@click.option(
    "--also-devices",
    type=DeviceCounts(),
    default=(),
    metavar="N,N,…",
    help="Search these numbers of devices too: time against node-hours.",
)
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
    help="Seconds after which the best plan so far is the answer, as soon as there is one.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    help="Processes.  [default: one for each core]",
)
@options.answer_options
def command(model: str, machine: str, as_json: bool, output: Path | None, **how: Any) -> None:
    """Find the plan with the fastest step of all that fit.

    \b
    simgpt search gpt-80b -m frontier -n 8192 --batch 8192
    simgpt search gpt-40b -m perlmutter -n 4096 --batch-tokens 16777216 --plan pipe=1 --top 10

    The space has every legal x, y, z, data, pipe, micro_batch, zero, recompute (none, selective,
    full), sequence_parallel, schedule, interleave, overlap and rank order; --plan fixes some (as in
    order=x-y-z-data-pipe), and sets other fields. Each plan is bounded from below, and simulated
    unless something faster is known, so the answer is the optimum and says so. Stopped early
    (Ctrl-C or --time-limit) it says how far off the best plan so far may be. Where no plan fits,
    that is the answer, with status 3.
    """
    from simulator.search import Question
    from topologies.policies import parse_placement

    gpt = options.model_of(model)
    question = Question(gpt, how["devices"], _batch(gpt, how), options.fixed_of(how["plan"]))
    built = options.machine_of(machine, how["settings"])
    placed = parse_placement(how["placement"], built, how["devices"])
    if how["rank_by"] == "axonn":
        _alone(how)
        text, record = _ranked_by_axonn(question, built, placed, how["top"])
        options.answer(text, record | _asked(how), as_json=as_json, output=output)
        return
    begun = time.monotonic()
    how["until"] = begun + (how["limit_s"] or math.inf)
    state = _found(question, built, placed, how)
    fronts = {
        "memory_front": _memory_front(question, built, placed, how, state),
        "devices_front": _devices_front(question, built, how, state),
    }
    record = as_record(question, built, state, how["objective"], fronts) | _asked(how)
    record["seconds"] = time.monotonic() - begun
    text = describe(question, built, state, how["objective"], fronts)
    options.answer(text, record, as_json=as_json, output=output)
    if not state.found:
        raise SystemExit(3)


def _batch(gpt: GPT, how: dict[str, Any]) -> int:
    batch = options.batch_of(how["batch"], how["batch_tokens"], gpt)
    if batch is None:
        raise click.UsageError("a search needs --batch or --batch-tokens")
    return batch


def _asked(how: dict[str, Any]) -> dict[str, Any]:
    settings = dict(options.settings_of(how["settings"]))
    return {"placement": {"policy": how["placement"]}, "settings": settings}


def _alone(how: dict[str, Any]) -> None:
    """Refuse what AxoNN's ranking does not heed."""
    others = ("exhaustive", "memory_front", "also_devices", "limit_s", "workers")
    if any(how[key] for key in others) or how["objective"] != "time":
        raise click.UsageError(
            "--rank-by axonn goes with none of --exhaustive, --memory-front, --also-devices, "
            "--time-limit, --workers and --objective"
        )


def _found(
    question: Question, machine: Machine, placement: Placement, how: dict[str, Any]
) -> State:
    from simulator.search import checked, search
    from simulator.search.compare import exhaustive

    wanted = {"placement": placement, "top": how["top"], "objective": how["objective"]}
    if how["exhaustive"]:
        if how["workers"] is not None:
            raise click.UsageError("--exhaustive goes without --workers")
        states = exhaustive(question, machine, **wanted)
    else:
        states = search(question, machine, workers=_workers(how), **wanted)
    return checked(watched(states, how["until"], how["objective"]))


def _workers(how: dict[str, Any]) -> int:
    return how["workers"] or len(os.sched_getaffinity(0))


def watched(states: Iterator[State], until: float, objective: str) -> State:
    """The last state, or one with a plan in which the time is up or somebody stops waiting."""
    from simgpt.progress import Ticker

    state = None
    with Ticker() as progress:
        try:
            for state in states:
                progress(_moment(state, objective))
                if time.monotonic() > until and state.found:
                    break
        except KeyboardInterrupt:
            if state is None or not state.found:
                raise
    assert state is not None, "a search has at least one state"
    return state


def _moment(state: State, objective: str) -> str:
    best = value_of(state.best, objective) if state.found else "none yet"
    return (
        f"{state.considered:,} plans, {state.simulated:,} simulated, best {best}, "
        f"none below {value_of(state.bound, objective)}"
    )


def _memory_front(
    question: Question, machine: Machine, placement: Placement, how: dict[str, Any], state: State
) -> list[Prediction]:
    """The best plan, then ever again the best that needs a tenth less memory or still less."""
    from simulator.search import search

    front = list(state.found[:1]) if how["memory_front"] else []
    while front and len(front) <= FRONT:
        states = search(
            question,
            machine,
            placement=placement,
            workers=_workers(how),
            objective=how["objective"],
            capacity_bytes=front[-1].memory.peak_bytes * 9 // 10,
        )
        found = watched(states, how["until"], how["objective"])
        if not found.found:
            break
        front.append(_certain(found))
    return front


def _certain(state: State) -> Prediction:
    """The best plan, and a word where it need not be."""
    best = state.found[0]
    if not state.is_optimal:
        options.note(f"stopped early on {best.devices:,} devices: {best.plan} need not be the best")
    return best


def _devices_front(
    question: Question, machine: Machine, how: dict[str, Any], state: State
) -> list[Prediction]:
    """The best plan of each number of devices that is faster, or cheaper in node-hours, than
    those of all others."""
    from topologies.policies import parse_placement

    found = list(state.found[:1]) if how["also_devices"] else []
    for devices in sorted({*how["also_devices"]} - {question.devices}):
        other = replace(question, devices=devices)
        try:
            placed = parse_placement(how["placement"], machine, devices)
            state = _found(other, machine, placed, how | {"top": 1})
        except SimgptError as error:
            options.note(f"{devices:,} devices are left out: {error}")
            continue
        found += [_certain(state)] if state.found else []
    found.sort(key=lambda each: each.devices)
    return [each for each in found if not any(_is_beaten(each, by) for by in found)]


def _is_beaten(each: Prediction, by: Prediction) -> bool:
    mine, its = ((p.step_s, p.cost.node_s_per_step) for p in (each, by))
    return its[0] <= mine[0] and its[1] <= mine[1] and its != mine


def _ranked_by_axonn(
    question: Question, machine: Machine, placement: Placement, top: int
) -> tuple[str, dict[str, Any]]:
    from simulator.search.compare import by_axonn, kendall_tau

    ranked = by_axonn(question, machine, placement=placement, top=max(top, 2))
    tau = kendall_tau(ranked)
    record = {
        "model": question.gpt.name,
        "machine": machine.full_name,
        "devices": question.devices,
        "batch": question.batch,
        "kendall_tau": tau,
        "correlation": f"Rank correlation of AxoNN's model with the simulator: {tau:.2f}.",
        "plans": [
            each.prediction.as_dict() | {"axonn_communication_s": each.communication_s}
            for each in ranked
        ],
    }
    return describe_ranking(ranked, tau), record
