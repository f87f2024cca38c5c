"""The comparison of runs with experts: errors, verdicts on memory, peaks and rankings.

Rows are predicted as other published runs are (validation/published); this module adds what those
have no measurement of. Nothing is fitted to these rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulator.uncertainty.step_range import OF_EXPERTS, published_residuals
from topologies.records import record
from validation.memory.memory_questions import ALLOCATED, measure_of
from validation.moe.rows import REMARKS, read_moe_runs
from validation.published.baselines import calibrated
from validation.published.case import OUT_OF_MEMORY
from validation.published.comparison import Comparison, chosen_of
from validation.published.coverage import Coverage, coverage
from validation.published.outcome import Outcome
from validation.published.plan_ranking import rankings
from validation.published.predicting import predict_runs
from validation.published.runs import PublishedRun

GIB = 2**30
LONG_TOKENS = 32768  # of a sequence: from here on a context counts as long


@record
class Verdicts:
    """On how many of the rows that are predicted the plan is rightly said to fit, or not to: among
    those that ran and among those that ran out of memory.

    `given` counts only rows that ran and say what they recompute: of the others a plan that does
    not fit may be one that is read wrongly.
    """

    ran: int
    ran_right: int
    given: int
    given_right: int
    out_of_memory: int
    out_of_memory_right: int


@record
class WithExperts:
    """Errors of scored steps of models with experts: of how many sources and rows that are not held
    out, the mean of the sources' mean errors; and the mean error of those that are held out."""

    sources: int
    rows: int
    mean_of_sources: float | None
    held_out_rows: int
    held_out_mape: float | None


@record
class LongContext:
    """Errors of scored steps of sequences of `LONG_TOKENS` tokens and more that are split over
    devices, of those not held out: how many sources and rows, the median and the mean error."""

    sources: int
    rows: int
    median_error: float | None
    mape: float | None


@record
class MoeComparison:
    """Outcomes in the file's order, those of `published_runs.csv` last."""

    comparison: Comparison

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """One for each row."""
        return self.comparison.outcomes

    @property
    def verdicts(self) -> Verdicts:
        """On rows that are not held out."""
        known = [each for each in self.outcomes if each.peak_bytes and not each.held_out]
        failed = [each for each in known if each.run.text("status") == OUT_OF_MEMORY]
        ran = [each for each in known if each.run.text("status") != OUT_OF_MEMORY]
        given = [each for each in ran if each.run.text("recompute")]
        return Verdicts(
            ran=len(ran),
            ran_right=sum(each.fits_as_read for each in ran),
            given=len(given),
            given_right=sum(each.fits_as_read for each in given),
            out_of_memory=len(failed),
            out_of_memory_right=sum(not each.fits_as_read for each in failed),
        )

    def peaks(self, *, given_out: bool = True) -> tuple[Outcome, ...]:
        """Rows that are not held out, with a measured and a predicted peak: those whose source says
        what the allocator gave out, as predictions do, or those that say what it took of the
        device, or all that the device held, which is more."""
        own = [each for each in self.outcomes if _has_peak(each) and not each.held_out]
        return tuple(
            each for each in own if given_out == (measure_of(each.run)["kind"] == ALLOCATED)
        )

    @property
    def mean_of_sources(self) -> float | None:
        """The mean of the sources' mean errors over scored rows that are not held out."""
        own = [each for each in self.outcomes if each.scored and not each.held_out]
        return _mean_of_sources(own)

    @property
    def with_experts(self) -> WithExperts:
        """The errors of scored rows of models with experts alone."""
        own = [each for each in self.outcomes if each.scored and has_experts(each.run)]
        known = [each for each in own if not each.held_out and each.error is not None]
        apart = [each for each in own if each.held_out]
        return WithExperts(
            sources=len(by_source(known)),
            rows=len(known),
            mean_of_sources=_mean_of_sources(known),
            held_out_rows=len(errors_of(apart)),
            held_out_mape=mean_error(errors_of(apart)),
        )

    @property
    def long_context(self) -> LongContext:
        """The errors of long sequences alone."""
        own = [each for each in self.outcomes if each.scored and is_long(each.run)]
        own = [each for each in own if not each.held_out and each.error is not None]
        errors = errors_of(own)
        return LongContext(
            sources=len(by_source(own)),
            rows=len(own),
            median_error=statistics.median(map(abs, errors)) if errors else None,
            mape=mean_error(errors),
        )

    @property
    def coverage(self) -> Coverage:
        """How many steps of such models are in their ranges, without the rows held out."""
        own = [each for each in self.outcomes if has_experts(each.run) and not each.held_out]
        return coverage(own, published_residuals(OF_EXPERTS))

    @property
    def mean_of_sources_calibrated(self) -> float | None:
        """`mean_of_sources` with one factor for each machine and stack, from its other rows."""
        own = [each for each in self.outcomes if each.scored and not each.held_out]
        means = [mean_error(_calibrated_errors(rows)) for rows in by_source(own).values()]
        return mean_error(mean for mean in means if mean is not None)

    def unpredicted(self) -> dict[str, int]:
        """How many rows are not predicted, by the reason."""
        found: dict[str, int] = {}
        for each in self.outcomes:
            if each.predicted_s is None:
                found[each.reason] = found.get(each.reason, 0) + 1
        return found

    def as_dict(self) -> dict[str, Any]:
        """The comparison as it stands in JSON."""
        record = self.comparison.as_dict()
        rows = [_row(each) for each in self.outcomes]
        return record | {
            "rows": rows,
            "mean_of_sources_developed": self.mean_of_sources,
            "mean_of_sources_calibrated": self.mean_of_sources_calibrated,
            "with_experts": asdict(self.with_experts),
            "long_context": asdict(self.long_context),
            "coverage": self.coverage.as_dict(),
            "verdicts": asdict(self.verdicts),
            "peak_mape": mean_error(map(peak_error, self.peaks())),
            "peak_mape_of_devices": mean_error(map(peak_error, self.peaks(given_out=False))),
            "unpredicted_reasons": self.unpredicted(),
        }


def validate_moe(
    path: Path | None = None,
    sources: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> MoeComparison:
    """Predict every row of a file, or of those that come with simgpt, or those whose source or id
    has one of the given words in it."""
    outcomes = calibrated(predict_runs(chosen_of(read_moe_runs(path), sources), progress))
    return MoeComparison(Comparison(tuple(outcomes), rankings(outcomes), None))


def peak_error(outcome: Outcome) -> float:
    """The predicted peak over the measured one, less one."""
    measured = outcome.run.real("peak_mem_GiB")
    assert measured
    assert outcome.peak_bytes
    return outcome.peak_bytes / GIB / measured - 1


def is_long(run: PublishedRun) -> bool:
    """Whether a row's sequences are long and split over devices."""
    return (run.whole("seq_len") or 0) >= LONG_TOKENS and (run.whole("cp") or 1) > 1


def has_experts(run: PublishedRun) -> bool:
    """Whether a row's model has experts; other rows are those of sequences split over devices."""
    return bool(run.whole("experts"))


def _mean_of_sources(outcomes: Sequence[Outcome]) -> float | None:
    means = [mean_error(errors_of(rows)) for rows in by_source(outcomes).values()]
    return mean_error(mean for mean in means if mean is not None)


def errors_of(outcomes: Iterable[Outcome]) -> list[float]:
    """The errors of those with a measured and a predicted step, scored or not."""
    return [each.error for each in outcomes if each.error is not None]


def _calibrated_errors(outcomes: Iterable[Outcome]) -> list[float]:
    pairs = ((each.calibrated_s, each.measured_s) for each in outcomes)
    return [found / measured - 1 for found, measured in pairs if found and measured]


def mean_error(errors: Iterable[float]) -> float | None:
    """The mean of the errors' sizes, None without one."""
    found = [abs(error) for error in errors]
    return statistics.fmean(found) if found else None


def by_source(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by who published them, in the file's order."""
    found: dict[str, list[Outcome]] = {}
    for each in outcomes:
        found.setdefault(each.run.source, []).append(each)
    return found


def _has_peak(outcome: Outcome) -> bool:
    ran = outcome.run.text("status") != OUT_OF_MEMORY
    return bool(ran and outcome.peak_bytes and outcome.run.text("peak_mem_GiB"))


def _row(outcome: Outcome) -> dict[str, Any]:
    row = outcome.as_dict()
    row |= {"predicted_peak_bytes": outcome.peak_bytes, "fits": outcome.fits_as_read}
    row["remarks"] = outcome.run.text(REMARKS)
    return row
