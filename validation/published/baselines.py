"""What stands beside our error: the formula that any simulator has to beat, and one factor."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from simulator.costs.analytic import peak_flops_per_s
from topologies.hardware.device_library import family_of
from topologies.machine import Machine
from topologies.records import record
from validation.published.case import Case
from validation.published.outcome import Ideal, Outcome
from validation.published.runs import PublishedRun
from workload.recipes.table import FP8

FP8_OVER_BF16 = 2.0  # peaks of Hopper's tensor cores, the only ones here that know fp8


@record
class Reached:
    """The share of its ideal that a scored row of a source reached on GPUs of a family."""

    source: str
    family: str
    share: float


def ideal_of(run: PublishedRun, case: Case, machine: Machine) -> Ideal | None:
    """The step if every device multiplied matrices at its peak all the time, that of fp8 for a row
    in fp8, whose runs are a family of their own; None without a batch or a number of GPUs.

    Hardware FLOPs over the peak, times one plus the bubble (p - 1)/(v m) of p stages, v chunks and
    m micro-batches. Source: Narayanan et al. (SC21), section 2.2.
    """
    batch, gpus = run.whole("global_batch_seqs"), run.whole("gpus_total")
    if not batch or not gpus:
        return None
    plan, gpt = case.job.plan, case.asked
    fp8 = plan.training.recipe == FP8
    full = plan.training.recompute.startswith("full")
    flops = gpt.hardware_flops(batch) if full else gpt.model_flops(batch)
    bubble = (plan.pp - 1) / (plan.vpp * plan.micro_batches)
    dtype = "fp8" if fp8 else "bf16"
    device_peak = peak_flops_per_s(machine, "bf16")
    peak = gpus * device_peak * (FP8_OVER_BF16 if fp8 else 1.0)
    return Ideal(f"{family_of(run.text('gpu'))} {dtype}", flops / peak * (1 + bubble))


def with_formula(outcomes: Sequence[Outcome], all_runs: Mapping[str, Reached]) -> list[Outcome]:
    """The outcomes with the formula's step: the ideal one over the utilisation of the GPU's family,
    that of all other sources, or of all families if no other source has it.

    A utilisation is the median over sources of each one's median, so that a source of hundreds of
    small runs does not decide it alone.
    """
    found = []
    for each in outcomes:
        ideal = each.ideal
        apart = [row for row in all_runs.values() if row.source != each.run.source]
        alike = [row for row in apart if ideal and row.family == ideal.family]
        share = _median_share(alike or apart) if ideal else None
        formula_s = ideal.step_s / share if ideal and share else None
        found.append(replace(each, formula_s=formula_s))
    return found


def _median_share(rows: Sequence[Reached]) -> float | None:
    by_source: dict[str, list[float]] = {}
    for row in rows:
        by_source.setdefault(row.source, []).append(row.share)
    return statistics.median(map(statistics.median, by_source.values())) if by_source else None


def calibrated(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with the prediction times one factor, fitted to the other rows of the stack.

    The factor is the median of measured over predicted, which a single strange row does not move;
    a row alone in its stack has none, and so no calibrated prediction.
    """
    stacks: dict[tuple[str, str, str], dict[str, float]] = {}
    for each in outcomes:
        if each.scored and each.measured_s and each.predicted_s:
            factors = stacks.setdefault(each.run.stack, {})
            factors[each.run.id] = each.measured_s / each.predicted_s
    return [_calibrated(each, stacks.get(each.run.stack, {})) for each in outcomes]


def _calibrated(each: Outcome, factors: Mapping[str, float]) -> Outcome:
    others = [factor for name, factor in factors.items() if name != each.run.id]
    if each.predicted_s is None or not others:
        return each
    return replace(each, calibrated_s=each.predicted_s * statistics.median(others))


def mean_error(
    outcomes: Sequence[Outcome], predicted: Callable[[Outcome], float | None]
) -> float | None:
    """Mean absolute error of the scored rows by one of the predictions."""
    pairs = [(predicted(each), each.measured_s) for each in outcomes if each.scored]
    errors = [abs(p / m - 1) for p, m in pairs if p is not None and m]
    return statistics.fmean(errors) if errors else None
