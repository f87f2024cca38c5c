"""`simgpt search`: the best plan for a model on so many devices."""

from __future__ import annotations

import math
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from simgpt import options
from simgpt.anchors import anchor_files_option, anchors_of
from simgpt.arguments.machine import assumed_of_parts, in_segments, segments_record
from simgpt.arguments.searched import searched_of
from simgpt.interrupts import Patience
from simgpt.invocation import asked
from simgpt.question import Question
from simgpt.question_options import asks
from simgpt.question_rows import MOST_DEVICES
from simgpt.search_output import Found, describe_ranking, next_commands
from simgpt.search_runner import Searches
from simgpt.step import Sources, batch_of, plan_table, stack_of
from topologies.exit_status import ExitStatus

if TYPE_CHECKING:
    from simulator.predict import Prediction
    from simulator.search import Progress, SearchProblem
    from topologies.machine import Machine
    from workload.gpt import GPT

MOST_WORKERS = 64
MOST_COUNTS = 100


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
        if min(found) < 1 or max(found) > MOST_DEVICES or len(found) > MOST_COUNTS:
            self.fail(f"{value} is not a list of numbers of devices, as in 512,1024", param, ctx)
        return found


class Share(click.ParamType[float]):
    """A share below one: `2%` or `0.02`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        word = str(value).strip()
        try:
            share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
        except ValueError:
            share = math.nan
        if not 0 <= share < 1:
            self.fail(f"{value} is not a share below one, as in 2% or 0.02", param, ctx)
        return share


def _sure() -> float:
    """The probability from which on an answer says that a plan fits."""
    from simulator.uncertainty.fitting import SURE

    return SURE


@click.command("search")
@asks(
    without=("compute", "tokens"),
    unheeded=("tokens",),
    devices={"required": True, "help": "Devices to use."},
    plan={
        "default": "",
        "show_default": False,
        "help": "Fields that all plans must have: pp=1,zero=1 or a TOML or JSON file.",
    },
)
@click.option(
    "--top", type=click.IntRange(1, 1000), default=3, show_default=True, help="How many plans."
)
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
    help="Seconds after which the best plan so far is the answer.",
)
@click.option(
    "--gap",
    type=Share(),
    default=0.0,
    help="Stop when the best so far can miss the best there is by this share, 2% or 0.02.",
)
@click.option(
    "--fits",
    "p_fits",
    type=Share(),
    default=_sure,
    help="With which probability plans must fit into memory, 0.01 to 0.99 or 1% to 99%; 0.9 unless "
    "given.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    help="Processes.  [default: one for each core]",
)
@anchor_files_option
@options.answer_options
def command(question: Question, as_json: bool, output: Path | None, **how: Any) -> None:
    """Find the plan with the fastest step of all that fit, in 9 of 10 comparable runs or as many as
    --fits says.

    \b
    simgpt search gpt-80b -m frontier -n 8192 --batch 8192
    simgpt search gpt-40b -m perlmutter -n 4096 --batch-tokens 16777216 --plan pp=1 --top 10

    The answer begins with the best plan of each family. The core space has every legal tp, y, z,
    cp (from 8,192 tokens a sequence), dp, pp, mbs, zero, recompute (none, selective, full), sp,
    ep, vpp, straight schedule, overlap and rank order that the stack runs: no plan of it is faster,
    which is proved. Around the best plans all else that predict knows is tried. --plan fixes fields
    (as in order=tp-dp-pp). Stopped early (Ctrl-C, SIGTERM, --time-limit, --gap) it says how far off
    the best plan so far may be. Where no plan fits, that is the answer, with status 3; where none
    was found in time, the status is 5.
    """
    options.note_engine()
    axonn = how["rank_by"] == "axonn"
    if axonn:
        _alone(question, how)
        question = question.changed(stack="simgpt")
    problem, given, built, chosen = _asked_for(question, how["p_fits"])
    said = partial(asked, question, problem.stack.name, chosen)
    policy = question.placement
    if axonn:
        text, record = _ranked_by_axonn(problem, built, policy, how["top"])
        options.answer(text, record | said(), as_json=as_json, output=output)
        return
    if how["exhaustive"] and how["workers"] is not None:
        raise click.UsageError("--exhaustive cannot be combined with --workers")
    with Patience(how["limit_s"] or math.inf) as patience:
        problem, state, fronts, faster = _answered(problem, given, policy, patience, how)
    ranks = problem.devices
    remarks = [*assumed_of_parts(question.machine, built), *in_segments(built, ranks)]
    next_words = next_commands(problem, state, question)
    best = how["objective"], how["gap"]
    found = Found(problem, built, state, *best, fronts, remarks, faster, next_words, chosen)
    racks = segments_record(built, ranks)
    record = found.as_record() | said(problem.recipe, **racks)
    options.answer(found.describe(), record, as_json=as_json, output=output)
    if state.found:
        return
    if state.is_optimal:
        raise SystemExit(ExitStatus.CANNOT_RUN)
    _nothing_found(patience, how["limit_s"])


def _asked_for(question: Question, p_fits: float) -> tuple[SearchProblem, Machine, Machine, str]:
    """The problem that a question asks for, its machine, the machine with room for the devices, and
    why it is that stack, where the question names none."""
    from simulator.search import SearchProblem
    from topologies.placement import with_room

    sources, devices = Sources(), question.devices or 0
    gpt, given = sources.model(question), sources.machine(question)
    built = with_room(given, devices)
    stack, chosen = stack_of(question, built, plan_table(question.plan), sources, searches=True)
    fixed, several = searched_of(question.plan, stack)
    batch = _batch(question, gpt)
    problem = SearchProblem(gpt, devices, batch, fixed, several=several, stack=stack, p_fits=p_fits)
    return problem, given, built, chosen


def _nothing_found(patience: Patience, limit_s: float | None) -> NoReturn:
    """End a search that nobody waited for until it had a plan, or could say that there is none."""
    when = f"within {limit_s:g} s" if limit_s else "in time"
    if patience.status:
        by = signal.Signals(patience.status - ExitStatus.SIGNALLED)
        when = f"before {by.name} ended the search"
    options.note(f"no plan was found {when}")
    raise SystemExit(patience.status or ExitStatus.MACHINE_FAILED)


def _answered(
    problem: SearchProblem,
    machine: Machine,
    policy: str,
    patience: Patience,
    how: dict[str, Any],
) -> tuple[SearchProblem, Progress, dict[str, list[Prediction]], list[int]]:
    """The problem with the room for its plans, how far the search came, and the plans along its
    fronts, all of them anchored; and near batches with faster plans."""
    from simulator.uncertainty.anchors import QuestionAnchors

    same = ("objective", "top", "workers", "exhaustive", "gap")
    anchors = QuestionAnchors(anchors_of(how["anchors"]))
    given = {key: how[key] for key in same}
    searches = Searches(machine, policy, patience, **given, anchors=anchors)
    state = searches.answer(problem)
    if state is None:
        _nothing_found(patience, how["limit_s"])
    best = searches.anchored_state(state)  # first: the best plan decides for all of its question
    others = how["also_devices"]
    memory = searches.memory_front(problem, state) if how["memory_front"] else []
    devices = searches.devices_front(problem, state, others) if others else []
    faster = searches.faster_batches(problem, state)
    fronts = {"memory_front": list(map(searches.anchored, memory)), "devices_front": devices}
    return searches.anchored_problem(problem), best, fronts, faster


def _batch(question: Question, gpt: GPT) -> int:
    batch = batch_of(question, gpt)
    if batch is None:
        raise click.UsageError("a search needs --batch or --batch-tokens")
    return batch


def _alone(question: Question, how: dict[str, Any]) -> None:
    """Refuse what AxoNN's ranking does not heed."""
    others = [
        *("exhaustive", "memory_front", "also_devices", "limit_s", "workers", "gap", "anchors"),
    ]
    of_another = question.stack not in ("", "simgpt")
    if any(how[key] for key in others) or how["objective"] != "time" or of_another:
        raise click.UsageError(
            "--rank-by axonn cannot be combined with --exhaustive, --memory-front, --also-devices, "
            "--time-limit, --workers, --gap, --anchor, --objective and --stack"
        )


def _ranked_by_axonn(
    problem: SearchProblem, machine: Machine, policy: str, top: int
) -> tuple[str, dict[str, Any]]:
    from simulator.search.baselines import by_axonn, kendall_tau
    from topologies.placement_names import parse_placement

    placement = parse_placement(policy, machine, problem.devices)
    ranked = by_axonn(problem, machine, placement=placement, top=top)
    tau = kendall_tau(ranked) if len(ranked) > 1 else None
    said = (
        "" if tau is None else f"Rank correlation of AxoNN's model with the simulator: {tau:.2f}."
    )
    record = {
        "model": problem.gpt.name,
        "machine": machine.name,
        "software": machine.variant or None,
        "devices": problem.devices,
        "batch": problem.batch,
        "kendall_tau": tau,
        "correlation": said,
        "plans": [
            each.prediction.as_dict() | {"axonn_communication_s": each.communication_s}
            for each in ranked
        ],
    }
    return describe_ranking(ranked, tau), record
