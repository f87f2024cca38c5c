"""The options of `simgpt plan-run` beside those of a step: tokens, saves, failures, jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from simgpt import noise_options
from simgpt.arguments.durations import Duration
from simgpt.question import Question
from topologies.errors import UnitError
from topologies.files.units import quantity
from topologies.hardware.reliability import Storage

Command = TypeVar("Command", bound=Callable[..., Any])
DRAWS, LEAST_DRAWS, MOST_DRAWS = 10_000, 10, 100_000
MOST_NODES, MOST_SPARES = 1_000_000, 1_000_000
DATE = "%Y-%m-%d"


class FileSystem(click.ParamType[Storage]):
    """What a file system writes and reads: `2 TB/s`, or `4.6 TB/s:5.5 TB/s`."""

    name = "write[:read]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, Storage):
            return value
        write, _, read = str(value).partition(":")
        try:
            rates = [quantity(rate, "bytes/s") for rate in (write, read or write)]
        except UnitError as error:
            self.fail(str(error), param, ctx)
        if min(rates) <= 0:
            self.fail(f"{value} writes or reads nothing", param, ctx)
        return Storage(*rates)


class NodeCounts(click.ParamType[tuple[int, ...]]):
    """Numbers of nodes to compare: `64,128,256`."""

    name = "nodes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        words = str(value).split(",")
        counts = [int(word) for word in words if word.isascii() and word.isdigit()]
        if len(counts) < len(words) or not all(1 <= each <= MOST_NODES for each in counts):
            self.fail(f"{value} are no numbers of nodes; write them like 64,128,256", param, ctx)
        return tuple(dict.fromkeys(counts))


_OPTIONS = (
    click.option(
        "--start", type=click.DateTime([DATE]), help="When the first job starts; else today."
    ),
    click.option(
        "--nodes",
        type=NodeCounts(),
        metavar="N,N,…",
        help="Compare these numbers of nodes in place of -n; the answer is the first to finish.",
    ),
    click.option(
        "--save-every",
        type=Duration(),
        help="Training between saves; else the interval of the shortest expected run.",
    ),
    click.option(
        "--async-save",
        is_flag=True,
        help="Training stalls for the copy to the host's memory alone, not for the whole save.",
    ),
    click.option(
        "--storage",
        type=FileSystem(),
        help="What the file system writes and reads, where the machine's file has none: '2 TB/s'.",
    ),
    click.option("--save-time", type=Duration(), help="What a save takes, in place of --storage."),
    click.option("--mtbf", type=Duration(), help="Mean time between failures of a node: 400d."),
    click.option(
        "--detection", type=Duration(zero=True), help="Until a failure is noticed (10min)."
    ),
    click.option(
        "--restart",
        type=Duration(zero=True),
        help="Until training goes on after that, without reading the checkpoint (10min).",
    ),
    click.option(
        "--spares",
        type=click.IntRange(0, MOST_SPARES),
        help="Nodes that replace broken ones; else the rest of the machine does.",
    ),
    click.option("--repair", type=Duration(), help="Until a broken node is a spare again: 1d."),
    click.option("--walltime", type=Duration(), help="Most that one job may take: 12h."),
    click.option("--queue-wait", type=Duration(zero=True), help="Mean wait of the next job: 2h."),
    click.option(
        "--draws",
        type=click.IntRange(LEAST_DRAWS, MOST_DRAWS),
        default=DRAWS,
        show_default=True,
        help="How many lives of the run to draw.",
    ),
)


def calendar_options(function: Command) -> Command:
    """Give a command the options of a whole run, and those of noise."""
    function = noise_options.noise_options(function)
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def check(question: Question, how: dict[str, Any]) -> None:
    """Refuse options that do not go together."""
    if how["nodes"] and question.devices is not None:
        raise click.UsageError("--nodes says how many devices there are; leave -n out")
    if how["storage"] is not None and how["save_time"] is not None:
        raise click.UsageError("give --storage or --save-time, not both")
    if (how["walltime"] is None) != (how["queue_wait"] is None):
        raise click.UsageError("--walltime and --queue-wait go together")
    if how["repair"] is not None and (how["spares"] is None or how["walltime"] is not None):
        raise click.UsageError(
            "--repair needs --spares and does not support --walltime, whose next job has whole "
            "nodes"
        )
    if how["spares"] is not None and how["repair"] is None and how["walltime"] is None:
        raise click.UsageError("--spares needs --repair, after which a broken node is back")
