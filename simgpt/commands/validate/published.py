"""`simgpt validate published`: published runs beside predicted ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from simgpt import options, tables
from simgpt.commands.validate.first_lines import (
    anchored_errors,
    changes_table,
    distances_table,
    first_lines,
    stored,
)
from simgpt.commands.validate.ranking_line import ranges_line, ranking_line
from simgpt.progress import Ticker

if TYPE_CHECKING:
    from validation.published.comparison import Comparison, ErrorScore
    from validation.published.outcome import Outcome
    from validation.published.runs import PublishedRun

NAME = 44  # characters of a source that its row in a table shows


@click.command("published")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A CSV file of runs; without it, those that come with simgpt.",
)
@click.option(
    "--sweeps",
    is_flag=True,
    help="Instead the other rows of two sweeps of plans, of which those have one in eight.",
)
@click.option("--source", "sources", multiple=True, help="Only sources or ids with this in them.")
@click.option(
    "--commands", is_flag=True, help="Print the simgpt predict of each run; predict nothing."
)
@click.option(
    "--leave-source-out",
    "unseen",
    is_flag=True,
    help="Predict each source again with the constants that the others give.",
)
@click.option(
    "--against",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A comparison written by --json before: print how each source's error changed.",
)
@options.answer_options
def command(
    data: Path | None,
    sweeps: bool,
    sources: tuple[str, ...],
    commands: bool,
    unseen: bool,
    against: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Predict published training runs.

    \b
    simgpt validate published
    simgpt validate published --source korth
    simgpt validate published --leave-source-out --json

    Of the stacks' constants two were chosen on a part of the rows, the pace that stacks share and
    the host's time of one (simulator/stacks/usual.toml); nothing else is fitted to step times. The
    file's columns are described in validation/data/published_runs.md; columns that are not known
    are kept. First comes the error that counts: the mean over sources of
    |ln(predicted / measured)|, each weighed by the root of its rows. With --source each row is
    shown with where its time goes, and with the part in which its error most likely sits: from a
    trace, or by regression of the source's errors on the parts' shares (the rule, and where it
    names none: validation/published/error_attribution.py). Beside
    our error stand that of the calibrated prediction (times one factor for each machine and
    software stack, fitted on the stack's other rows) and that of a formula: one constant
    utilisation for each family of GPUs, and the pipeline's bubble.
    """
    from validation.published.runs import RUNS, SWEEPS, read_runs

    if sweeps and data is not None:
        raise click.UsageError("--sweeps names the rows; leave out --data")
    shipped = SWEEPS if sweeps else RUNS
    if commands and against is not None:
        raise click.UsageError("--commands predicts nothing; leave out --against")
    if commands:
        return print_commands(read_runs(data, shipped), sources, as_json=as_json, output=output)
    if unseen and sources:
        raise click.UsageError("--leave-source-out takes every source; leave out --source")
    before = stored(against)
    report, left_out = _compared(data, sources, shipped, unseen=unseen)
    anchored = anchored_errors(report.outcomes)
    parts = [first_lines(report, anchored)]
    parts += [_rows(report.outcomes), left_of_recipes(report.outcomes)] if sources else []
    parts += [_scores(report, "source"), _scores(report, "machine"), *_remarks(report)]
    parts += [_unseen(report, left_out)] if unseen else []
    parts += [changes_table(report.outcomes, before)]
    text = "\n\n".join(part for part in parts if part)
    record = report.as_dict() | {"anchored": anchored}
    record |= _unseen_record(report, left_out) if unseen else {}
    options.answer(text, record, as_json=as_json, output=output)


def _compared(
    data: Path | None, sources: tuple[str, ...], shipped: str, *, unseen: bool
) -> tuple[Comparison, dict[str, float]]:
    """The comparison, and if asked for each source's error with the constants of the others."""
    from validation.leave_source_out import leave_source_out
    from validation.published import validate_published

    with Ticker() as ticker:
        report = validate_published(data, sources, ticker, shipped)
        return report, leave_source_out(report, ticker) if unseen else {}


def _unseen(report: Comparison, left_out: dict[str, float]) -> str:
    """Each source's error beside that with the constants that the others give."""
    seen, columns = report.by("source"), ["source", "ours", "constants of the other sources"]
    rows = [
        (name[:NAME], _percent(seen[name].mape), _percent(error))
        for name, error in left_out.items()
    ]
    rows.append(("mean", _percent(report.mean_of_sources()), _percent(fmean(left_out.values()))))
    return f"{tables.table(columns, rows)}\n\n{_paces(report)}"


def _unseen_record(report: Comparison, left_out: dict[str, float]) -> dict[str, Any]:
    """What `_unseen` shows, for the JSON record."""
    from validation.leave_source_out import chosen_paces

    mean, paces = fmean(left_out.values()), chosen_paces(report.outcomes)
    return {"leave_source_out_mape": mean, "leave_source_out": left_out, "chosen_pace": paces}


def _paces(report: Comparison) -> str:
    """What the shared pace is chosen from, so that it can be held against the file's."""
    from validation.leave_source_out import ALL, SHARED, chosen_paces

    chosen = chosen_paces(report.outcomes)
    without = [pace for source, pace in chosen.items() if source != ALL]
    if not without:
        return "no row of these chooses a pace"
    return (
        f"pace: {SHARED.own_kernels['pace']:g} in simulator/stacks/usual.toml; {len(without)} "
        f"sources choose {chosen[ALL]:.2f}, {min(without):.2f} to {max(without):.2f} without one"
    )


def print_commands(
    runs: Sequence[PublishedRun],
    sources: tuple[str, ...],
    *,
    as_json: bool,
    output: Path | None,
) -> None:
    """Print the command of each run whose source or id has one of some words in it."""
    from validation.published.comparison import chosen_of

    lines = list(map(command_line_of, chosen_of(runs, sources)))
    options.answer("\n".join(lines), {"commands": lines}, as_json=as_json, output=output)


def command_line_of(run: PublishedRun) -> str:
    """The command of a run, ready for a shell, or a comment that says why there is none."""
    from simgpt.question import Question
    from validation.published.commands import NoCommandError, question_of_run

    try:
        return f"{Question.of(**question_of_run(run)).command}  # {run.id}"
    except NoCommandError as error:
        return f"# {run.id}: {error}"


def _scores(report: Comparison, column: str) -> str:
    columns = [column, "rows", "ours", "bias", "worst", "worst row", "calibrated", "formula"]
    rows = [
        (name[:NAME], *_figures(error_score))
        for name, error_score in report.by(column).items()
        if error_score.rows
    ]
    rows.append(("all", *_figures(report.all)))
    return tables.table(columns, rows)


def _figures(error_score: ErrorScore) -> tuple[str, ...]:
    return (
        f"{error_score.rows}",
        _percent(error_score.mape),
        _percent(error_score.bias, sign=True),
        _percent(error_score.worst.error if error_score.worst else None, sign=True),
        error_score.worst.run.id if error_score.worst else "-",
        _percent(error_score.calibrated_mape),
        _percent(error_score.formula_mape),
    )


def _rows(outcomes: tuple[Outcome, ...]) -> str:
    columns = ["row", "plan or reason", "measured", "predicted", "error", "formula"]
    columns += ["time goes to", "error sits in"]
    shown = [
        (
            each.run.id,
            each.plan or each.reason,
            _seconds(each.measured_s),
            _seconds(each.predicted_s),
            _percent(each.error, sign=True) + ("" if each.scored or each.error is None else " *"),
            _seconds(each.formula_s),
            _breakdown(each),
            _error_part(each),
        )
        for each in outcomes
    ]
    return tables.table(columns, shown, left=2)


def _error_part(outcome: Outcome) -> str:
    by = outcome.error_known_by
    return f"{outcome.error_part} ({by})" if by not in ("", outcome.error_part) else by


def _breakdown(outcome: Outcome) -> str:
    total = sum(outcome.breakdown_s.values())
    parts = sorted(outcome.breakdown_s.items(), key=lambda part: -part[1])
    return " ".join(f"{name} {value / total:.0%}" for name, value in parts[:3] if value)


def _remarks(report: Comparison) -> Iterator[str]:
    means = [report.mean_of_sources(n) for n in ("mape", "calibrated_mape", "formula_mape")]
    ours, calibrated, formula = (_percent(mean) for mean in means)
    yield (
        f"mean of the sources' means: blind {ours}, calibrated {calibrated}, formula {formula}\n"
        f"median absolute error {_percent(report.all.median_error)}"
    )
    found = report.coverage
    if found.sources:
        yield ranges_line(found)
        yield distances_table(found)
    if report.not_fitting:
        yield (
            f"{tables.several(len(report.not_fitting), 'row')} would not fit into a device, though "
            f"they ran: {', '.join(report.not_fitting)}"
        )
    rest, apart = report.developed, report.held_out
    yield (
        f"held out, a tenth drawn by a seed: {_percent(apart.mape)} over "
        f"{tables.several(apart.rows, 'row')}; the rest: {_percent(rest.mape)} over "
        f"{tables.several(rest.rows, 'row')}"
    )
    for name, ranking in (("ours", report.ranking), ("formula", report.formula_ranking)):
        if ranking is not None:
            yield ranking_line(ranking, f", {name}")
    yield "\n".join(_left_out(report))


def left_of_recipes(outcomes: Iterable[Outcome]) -> str:
    """What rows do not take from the recipes that they name, and why."""
    from validation.published import recipes

    return "\n".join(recipes.left_of_recipes(each.run.columns for each in outcomes))


def _left_out(report: Comparison) -> Iterator[str]:
    """Rows that are not predicted one by one, and how many are not scored for what reason."""
    reasons: dict[str, int] = {}
    for each in report.outcomes:
        if each.predicted_s is None:
            yield f"{each.run.id}: {each.status}, {each.reason}"
        elif each.unscored:
            reasons[each.unscored] = reasons.get(each.unscored, 0) + 1
        elif each.measured_s is None:
            reasons["no step time, FLOP/s or MFU published"] = (
                reasons.get("no step time, FLOP/s or MFU published", 0) + 1
            )
    for reason, count in reasons.items():
        yield f"{tables.several(count, 'row')} predicted but not scored (*): {reason}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else tables.seconds(value)


def _percent(share: float | None, *, sign: bool = False) -> str:
    return "-" if share is None else tables.percent(share, sign=sign)
