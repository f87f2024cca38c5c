"""The figures of a paper that follow from predictions of its runs.

Each kind of figure is a function of one prediction, or of two; the table of them says what it is.
Shares are in per cent. The FLOPs of AxoNN and of Megatron count recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

from simulator.predict import Prediction
from simulator.uncertainty.step_range import (
    FEW,
    PublishedResiduals,
    StepRange,
    published_residuals,
    run_of_plan,
    table_of,
)
from topologies.records import record
from validation.seeds.candidates import Candidates

TOKENS = 2e12  # of AxoNN's times to solution
DAY_S = 86400.0


@record
class Range:
    """A predicted figure, and from where to where it may lie, if anything says so."""

    predicted: float
    low: float | None = None
    high: float | None = None


def _about(predicted: float, values: Sequence[float]) -> Range:
    """The range of some values, if they are more than the predicted one alone."""
    return Range(predicted, min(values), max(values)) if len(values) > 1 else Range(predicted)


def _flops(run: Prediction) -> float:
    return run.hardware_flops_per_s_per_device * run.devices / 1e15


def _days(run: Prediction) -> float:
    return TOKENS / run.tokens_per_s / DAY_S


def _compute_s(run: Prediction) -> float:
    return run.breakdown_s["compute"]


def _memory_gib(run: Prediction) -> float:
    return run.memory.peak_bytes / 2**30


def _efficiency(run: Prediction, base: Prediction) -> float:
    rates = [each.hardware_flops_per_s_per_device for each in (run, base)]
    return 100 * rates[0] / rates[1]


def _saving(run: Prediction, base: Prediction) -> float:
    return 100 * (1 - run.step_s / base.step_s)


OF_ONE: Mapping[str, Callable[[Prediction], float]] = {
    "hfu": lambda run: 100 * run.hfu,
    "flops": _flops,
    "days": _days,
    "compute": _compute_s,
    "memory": _memory_gib,
}
OF_TWO: Mapping[str, Callable[[Prediction, Prediction], float]] = {
    "efficiency": _efficiency,
    "saving": _saving,
}
BY_TIME = {"hfu": -1, "flops": -1, "days": 1}  # how a figure grows with the step's time


def of_one(kind: str, run: Candidates) -> Range:
    """A figure of one run: the fastest candidate's, with the range of its step where the figure
    follows from that and runs of the same software give one, and those of all that are possible."""
    figure, best = OF_ONE[kind], run.best
    predicted = figure(best)
    values = [predicted, *(figure(each) for each in run.possible if each is not best)]
    if kind in BY_TIME and (within := range_of_software(best)):
        values += [
            predicted * (step_s / best.step_s) ** BY_TIME[kind]
            for step_s in (within.low_s, within.high_s)
        ]
    return _about(predicted, values)


def range_of_software(found: Prediction) -> StepRange | None:
    """The range of a predicted step from published runs of the same software alone, by its stack's
    family; None where there are fewer than `FEW` of them."""
    table = published_residuals(table_of(experts=found.gpt.moe.experts > 0))
    run = run_of_plan(found.stack, found.device, found.plan)
    rows = [row for row in table.rows if row[1].stack_family == run.stack_family]
    if len(rows) < FEW:
        return None
    sources, runs, residuals = zip(*rows, strict=True)
    return PublishedResiduals(runs, sources, residuals).range_of(found.step_s, run)


def of_two(kind: str, run: Candidates, base: Candidates, *, paired: bool) -> Range:
    """A figure of two runs: that of the fastest candidates, with the error of a difference, and
    those of all that are possible; `paired` candidates are compared one by one, and the fastest is
    the first run's."""
    figure, best = OF_TWO[kind], run.best
    other = base.predictions[run.predictions.index(best)] if paired else base.best
    predicted = figure(best, other)
    values = [predicted, *(figure(*pair) for pair in _pairs(run, base, paired=paired))]
    share = best.difference_error.share
    values += [_with_error(kind, predicted, sign * share) for sign in (-1, 1)]
    return Range(predicted, min(values), max(values))


def _pairs(
    run: Candidates, base: Candidates, *, paired: bool
) -> Iterable[tuple[Prediction, Prediction]]:
    if not paired:
        return product(run.possible, base.possible)
    both = zip(run.predictions, base.predictions, strict=True)
    return [pair for pair in both if pair[0] in run.possible]


def _with_error(kind: str, value: float, share: float) -> float:
    """A figure with the ratio of the two steps off by a share."""
    ratio = math.exp(math.copysign(math.log1p(abs(share)), share))
    return 100 - (100 - value) * ratio if kind == "saving" else value * ratio
