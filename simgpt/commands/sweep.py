"""`simgpt sweep`: every point of a study predicted, on one process or on many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.anchors import anchor_files_option, anchors_of
from simgpt.invocation import asked_of_study
from simgpt.progress import Ticker
from topologies.exit_status import ExitStatus

if TYPE_CHECKING:
    from simgpt.studies.study import Study

MOST_WORKERS = 4096
ORDERS = ("throughput", "time", "node-hours", "energy", "memory", "study")
JOBS = ("partition", "account", "time", "cores", "interface")
SHOWN = 20


@click.command("sweep")
@click.argument("study", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The folder of the results.")
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    default=1,
    show_default=True,
    help="Processes that predict.",
)
@click.option("--scheduler", metavar="FILE|ADDRESS", help="Predict on a running Dask cluster.")
@click.option("--slurm", is_flag=True, help="Predict in Slurm jobs, started for the sweep by Dask.")
@click.option("--partition", help="Slurm: the partition.")
@click.option("--account", help="Slurm: the account.")
@click.option("--time", help="Slurm: the time of a job, as in 01:00:00 (an hour, if not given).")
@click.option("--cores", type=click.IntRange(1, 512), help="Slurm: workers in each job.")
@click.option("--interface", help="Slurm: the network that workers are reached on, as in ib0.")
@click.option(
    "--timeout",
    "timeout_s",
    type=options.Number(min=1, max=options.LONGEST_S),
    default=3600.0,
    show_default=True,
    help="Seconds that the next row of many workers may take.",
)
@click.option(
    "--sort",
    type=click.Choice(ORDERS),
    help="What makes the best row: model FLOP/s per device, unless it is a scaling study.",
)
@click.option("--limit", type=click.IntRange(min=1), help=f"Rows to show (a table of {SHOWN}).")
@anchor_files_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(study: Path, output: Path | None, as_json: bool, **how: Any) -> None:
    """Predict every point of a study file (docs/studies.md), into a folder.

    \b
    simgpt sweep plans.toml --workers 8
    simgpt sweep plans.toml --slurm --partition batch --account abc123 --workers 64 --cores 32

    The folder, STUDY-results unless -o names another, has a row per point in results.jsonl, written
    as they finish. A sweep that was interrupted goes on where it was when started again. Points
    that cannot run are rows with a reason. Ends with status 3 if no point can run.
    """
    from simgpt.studies.inputs import inputs_of
    from simgpt.studies.journal import rows_in
    from simgpt.studies.scaling import with_published
    from simgpt.studies.study import read_study
    from simgpt.studies.study_table import describe, ranked
    from simgpt.studies.sweep_rows import sweep_into

    workers = _workers(how)
    given = read_study(study)
    inputs = inputs_of(given, anchors_of(how["anchors"]))
    folder = Path(f"{study.stem}-results") if output is None else output
    with Ticker() as ticker:
        words = f"sweeping {given.title}"
        ticker(words)
        sweep_into(
            folder, given, inputs, workers, lambda done: ticker(words, done=done, of=len(given))
        )
    order = how["sort"] or ("study" if given.scaling else "throughput")
    rows = ranked(rows_in(folder), order)
    rows = [with_published(row) for row in rows] if given.scaling else rows
    text = f"{describe(given, rows, how['limit'] or SHOWN, order)}\nresults in {folder}"
    record = {"folder": str(folder), **swept(given, order)}
    answer_rows(text, record, rows, as_json=as_json, limit=how["limit"])


def _workers(how: dict[str, Any]) -> Any:
    """Who predicts, from the options; those that do not go together are refused."""
    from simgpt.studies.cluster import Slurm
    from simgpt.studies.sweep_rows import SweepResources

    if how["slurm"] and how["scheduler"]:
        raise click.UsageError("give --slurm or --scheduler, not both")
    jobs = {key: how[key] for key in JOBS if how[key]}
    if jobs and not how["slurm"]:
        raise click.UsageError(f"--{next(iter(jobs))} needs --slurm")
    slurm = Slurm(workers=how["workers"], **jobs) if how["slurm"] else None
    return SweepResources(how["workers"], how["scheduler"], slurm, how["timeout_s"])


def swept(study: Study, order: str) -> dict[str, Any]:
    """What a sweep's JSON says of its study, for `simgpt report` too."""
    kept = study.as_dict()
    return {
        "title": study.title,
        "varied": kept["varied"],
        "scaling": kept["scaling"],
        "sort": order,
        "asked": asked_of_study(study),
    }


def answer_rows(
    text: str | Callable[[], str],
    about: dict[str, Any],
    rows: list[dict[str, Any]],
    *,
    as_json: bool,
    limit: int | None = None,
    output: Path | None = None,
) -> None:
    """Print the rows, and end with status 3 if none can run, or 1 if the simulator failed."""
    from simgpt.studies.study_table import undecided as undecided_rows

    counts = {
        status: sum(row["status"] == status for row in rows)
        for status in ("ok", "infeasible", "error")
    }
    error, undecided = undecided_rows(rows, about.get("sort", ""))
    told = {"difference_error": error, "undecided": undecided}
    record = {**about, "points": len(rows), **counts, **told, "rows": rows[:limit]}
    options.answer(text, record, as_json=as_json, output=output)
    if counts["error"]:
        failed = tables.several(counts["error"], "point")
        options.note(f"the simulator failed at {failed}, which is a bug")
        raise SystemExit(ExitStatus.BUG)
    if not counts["ok"]:
        raise SystemExit(ExitStatus.CANNOT_RUN)
