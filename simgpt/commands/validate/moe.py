"""`simgpt validate moe`: published runs of models with experts beside predicted ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpt import options, tables
from simgpt.commands.validate.published import left_of_recipes, print_commands
from simgpt.commands.validate.ranking_line import ranges_line, ranking_line
from simgpt.invocation import ran
from simgpt.progress import Ticker

if TYPE_CHECKING:
    from validation.moe.comparison import MoeComparison
    from validation.published.outcome import Outcome

NAME = 44  # characters of a source that its row in a table shows
HELD = "peak beside what the allocator took or the device held, which is more"
ASSUMED = ("global_batch_seqs", "tp", "ep", "recompute")  # of rows that publish FLOP/s alone


@click.command("moe")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A CSV file of runs; without it, those that come with simgpt.",
)
@click.option("--source", "sources", multiple=True, help="Only sources or ids with this in them.")
@click.option(
    "--commands", is_flag=True, help="Print the simgpt predict of each run; predict nothing."
)
@options.answer_options
def command(
    data: Path | None,
    sources: tuple[str, ...],
    commands: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Predict published runs of mixtures of experts, and of sequences split over devices.

    \b
    simgpt validate moe
    simgpt validate moe --source xmoe
    simgpt validate moe --data mine.csv --json

    Rows are read and predicted as those of validate published; nothing is fitted to them. What
    their columns mean, and what is assumed where they do not say, is in validation/data/moe.toml.
    With --source each row is shown, but for those that are held out: a tenth, drawn by a seed, of
    which only the mean error is said. Rows of models or plans that simgpt does not have are
    counted with the reason.
    """
    from validation.moe.comparison import validate_moe
    from validation.moe.rows import read_moe_runs

    if commands:
        return print_commands(read_moe_runs(data), sources, as_json=as_json, output=output)
    with Ticker() as ticker:
        report = validate_moe(data, sources, ticker)
    parts = [_rows(report), left_of_recipes(report.outcomes)] if sources else []
    parts += [_sources(report), _rates(report), *_remarks(report)]
    record = report.as_dict() | ran()
    text = "\n\n".join(part for part in parts if part)
    options.answer(text, record, as_json=as_json, output=output)


def _sources(report: MoeComparison) -> str:
    """Errors by source, without the rows that are held out."""
    from validation.moe.comparison import by_source, errors_of, mean_error
    from validation.published.comparison import error_score

    columns = ["source", "rows", "predicted", "scored", "error", "bias", "calibrated", "unscored"]
    lines = []
    for name, every in by_source(report.outcomes).items():
        own = [each for each in every if not each.held_out]
        score = error_score(own)
        other = mean_error(errors_of(each for each in own if not each.scored))
        lines.append(
            (
                name[:NAME],
                f"{len(own)}",
                f"{sum(each.predicted_s is not None for each in own)}",
                f"{score.rows}",
                _percent(score.mape),
                _percent(score.bias, sign=True),
                _percent(score.calibrated_mape),
                _percent(other),
            )
        )
    return tables.table(columns, lines)


def _rates(report: MoeComparison) -> str:
    """Rows that publish FLOP/s alone, beside the predicted ones."""
    known = [
        each
        for each in report.outcomes
        if each.predicted_s
        and each.measured_s
        and not each.held_out
        and not each.run.text("measured_step_s")
    ]
    if not known:
        return ""
    columns = ["row", "model", "devices", "published FLOP/s", "predicted", "assumed"]
    return tables.table(columns, [_rate(each) for each in known], left=2)


def _rate(each: Outcome) -> tuple[str, ...]:
    assert each.measured_s
    assert each.predicted_s
    published = (each.run.real("measured_tflops_per_gpu") or 0.0) * 1e12
    rates = (published, published * each.measured_s / each.predicted_s)
    devices = f"{each.run.whole('gpus_total'):,}"
    shown = (f"{rate / 1e12:.1f} TFLOP/s" for rate in rates)
    assumed = [f"{word}={each.run.text(word)}" for word in ASSUMED if each.run.text(word)]
    return (each.run.id, each.run.text("model"), devices, *shown, " ".join(assumed))


def _rows(report: MoeComparison) -> str:
    columns = ["row", "model", "plan or reason", "measured", "predicted", "error", "peak", "fits"]
    return tables.table(columns, [_row(each) for each in report.outcomes], left=3)


def _row(each: Outcome) -> tuple[str, ...]:
    hidden = each.held_out
    error = "held out" if hidden else _percent(each.error, sign=True)
    star = "" if hidden or each.scored or each.error is None else " *"
    return (
        each.run.id,
        each.run.text("model"),
        each.plan or each.reason,
        "held out" if hidden else _seconds(each.measured_s),
        _seconds(each.predicted_s),
        f"{error}{star}",
        tables.gib(each.peak_bytes) if each.peak_bytes else "-",
        "-" if each.peak_bytes is None else "yes" if each.fits_as_read else "no",
    )


def _peaks(report: MoeComparison) -> Iterator[str]:
    from validation.moe.comparison import mean_error, peak_error

    known = {"peak memory": report.peaks(), HELD: report.peaks(given_out=False)}
    for words, rows in known.items():
        if rows:
            error = _percent(mean_error(map(peak_error, rows)))
            yield f"{words}: {error} off over {tables.several(len(rows), 'row')}"


def _remarks(report: MoeComparison) -> Iterator[str]:
    comparison, verdicts = report.comparison, report.verdicts
    yield (
        f"mean of the sources' means: {_percent(report.mean_of_sources)}; with one factor for each "
        f"machine and stack: {_percent(report.mean_of_sources_calibrated)}"
    )
    rest, apart = comparison.developed, comparison.held_out
    yield (
        f"held out, a tenth drawn by a seed: {_percent(apart.mape)} over "
        f"{tables.several(apart.rows, 'row')}; the rest: {_percent(rest.mape)} over "
        f"{tables.several(rest.rows, 'row')}"
    )
    yield _experts_alone(report)
    if report.long_context.rows:
        yield _long_context(report)
    if (found := report.coverage).sources:
        yield ranges_line(found)
    yield (
        f"of {tables.several(verdicts.ran, 'row')} that ran {verdicts.ran_right} fit as they are "
        f"read ({verdicts.given_right} of {verdicts.given} whose recomputation is published); of "
        f"{tables.several(verdicts.out_of_memory, 'predicted row')} that ran out of memory "
        f"{verdicts.out_of_memory_right} do not fit"
    )
    yield from _peaks(report)
    if comparison.ranking is not None:
        yield ranking_line(comparison.ranking)
    yield "\n".join(
        f"{tables.several(count, 'row')} not predicted: {reason}"
        for reason, count in report.unpredicted().items()
    )


def _experts_alone(report: MoeComparison) -> str:
    own = report.with_experts
    return (
        f"models with experts alone: {_percent(own.mean_of_sources)}, the mean of "
        f"{tables.several(own.sources, 'source')} with {tables.several(own.rows, 'row')}; held "
        f"out: {_percent(own.held_out_mape)} over {tables.several(own.held_out_rows, 'row')}"
    )


def _long_context(report: MoeComparison) -> str:
    from validation.moe.comparison import LONG_TOKENS

    own = report.long_context
    return (
        f"sequences of {LONG_TOKENS:,} tokens and more, split over devices: median error "
        f"{_percent(own.median_error)}, mean {_percent(own.mape)}, over "
        f"{tables.several(own.rows, 'row')} of {tables.several(own.sources, 'source')}"
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else tables.seconds(value)


def _percent(share: float | None, *, sign: bool = False) -> str:
    return "-" if share is None else tables.percent(share, sign=sign)
