"""`simgpt validate memory`: predicted peaks of memory beside measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpt import options, tables
from simgpt.progress import Ticker
from simulator.uncertainty.fitting import VERDICTS

if TYPE_CHECKING:
    from validation.memory import MemoryValidation, VerdictValidation
    from validation.memory.memory_validation import MemoryRow

NAME, WIDE = 44, 60  # characters of a source that its row in a table shows


@click.command("memory")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A CSV file of runs; without it, those that come with simgpt.",
)
@click.option("--rows", is_flag=True, help="Show each row.")
@options.answer_options
def command(data: Path | None, rows: bool, as_json: bool, output: Path | None) -> None:
    """Predict the peak of memory of measured runs, and whether runs fit.

    \b
    simgpt validate memory
    simgpt validate memory --data megatron_golden.csv --json

    The runs are those of Megatron-LM's own CI, with the peak of the last rank, and published runs
    that say their peak. A file has the columns of either (validation/data). What a source measures
    is the most that PyTorch's allocator gave out, the most that it reserved, or all that the device
    held (validation/data/memory_measures.toml); predictions are in the same terms. Runs that no
    plan of simgpt stands for are counted by their reason.

    Verdicts are those on all runs, with a peak or without, and on runs that ran out of memory, each
    as it is read, with P(fits) from the peaks of other sources.
    """
    from validation.memory import validate_memory, validate_verdicts

    with Ticker() as ticker:
        found = validate_memory(data, ticker)
        verdicts = validate_verdicts(data, ticker)
    parts = [_rows(found.rows)] if rows else []
    if found.rows:
        parts += [_sources(found), "\n".join(_remarks(found))]
    parts += ["\n".join(_refused(found.refused))]
    if verdicts.rows:
        parts += [_verdicts(verdicts), _reliability(verdicts)]
    parts += [_unread(verdicts)] if data is None or not found.rows else []
    text = "\n\n".join(part for part in parts if part)
    record = found.as_dict() | {"verdicts": verdicts.as_dict()}
    options.answer(text, record, as_json=as_json, output=output)


def _refused(reasons: Mapping[str, int]) -> list[str]:
    return [f"{count:,} refused: {reason}" for reason, count in reasons.items()]


def _unread(found: VerdictValidation) -> str:
    """How many runs have no verdict; their reasons stand in JSON."""
    count = sum(found.refused.values())
    return f"{tables.several(count, 'run')} without a verdict: --json says why" if count else ""


def _verdicts(found: VerdictValidation) -> str:
    shown = [
        (
            name[:WIDE],
            f"{each.rows:,}",
            tables.percent(each.fits),
            tables.percent(each.tight),
            tables.percent(each.does_not_fit),
        )
        for name, each in found.tallies().items()
    ]
    return tables.table(["verdicts", "runs", *VERDICTS], shown)


def _reliability(found: VerdictValidation) -> str:
    shown = [
        (f"{low:g} to {high:g}", f"{ran:,}", f"{failed:,}")
        for low, high, ran, failed in found.reliability()
        if ran or failed
    ]
    table = tables.table(["P(fits)", "ran", "out of memory"], shown)
    return f"{table}\n\nBrier score {found.brier:.3f}, both outcomes weighed alike (a coin: 0.25)"


def _sources(found: MemoryValidation) -> str:
    from validation.memory.memory_validation import bias, mape

    shown = []
    for name, rows in found.sources.items():
        worst = max(rows, key=lambda row: abs(row.error))
        shown.append(
            (
                name[:NAME],
                "+".join(dict.fromkeys(row.measure for row in rows)),
                f"{len(rows):,}",
                tables.percent(mape(rows)),
                tables.percent(bias(rows), sign=True),
                tables.percent(worst.error, sign=True),
                worst.id,
            )
        )
    columns = ["source", "measured", "rows", "mean", "bias", "worst", "worst row"]
    return tables.table(columns, shown, left=2)


def _remarks(found: MemoryValidation) -> Iterator[str]:
    from validation.memory.memory_validation import mape

    questions = found.questions
    yield (
        f"mean absolute error {tables.percent(found.mape)} over "
        f"{tables.several(len(found.rows), 'row')}, {tables.percent(mape(questions))} over "
        f"{tables.several(len(questions), 'different plan')}"
    )
    yield (
        "verdicts that would be wrong where a device has that much more or less than the run took: "
        + _wrong(found)
    )
    if (own := found.with_experts).rows:
        count = tables.several(len(own.rows), "row")
        yield f"of models with experts, {count}: {_wrong(own)}"
    median, most = found.unused
    yield (
        "what the caching allocator reserves beyond what it gives out (rounding, segments, unused "
        f"rests): {tables.percent(median)}, in 9 of 10 plans up to {tables.percent(most)}"
    )


def _wrong(found: MemoryValidation) -> str:
    wrong = found.wrong_by_margin.items()
    return ", ".join(f"{tables.percent(share)} at {100 * float(by):g} %" for by, share in wrong)


def _rows(rows: tuple[MemoryRow, ...]) -> str:
    shown = [
        (
            row.id,
            row.plan,
            row.measure,
            tables.gib(row.measured_bytes),
            tables.gib(row.predicted_bytes),
            tables.percent(row.error, sign=True),
        )
        for row in rows
    ]
    return tables.table(["row", "plan", "of", "measured", "predicted", "error"], shown, left=3)
