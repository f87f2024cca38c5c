"""How sources come out whose own rows chose nothing: each with the constants that the others give.

Two constants of stacks are chosen on published steps: the pace that stacks share
(simulator/stacks/usual.toml), and the host's time of a stack (`host`). A source that is left out
has the pace that the remaining sources choose, by the same rule, and no host's time of its own.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from simulator.stacks import Stack, load_stack
from validation.published.comparison import Comparison, error_score
from validation.published.outcome import Outcome
from validation.published.predicting import predict_runs
from validation.published.runs import PublishedRun

SHARED = load_stack("other")  # a stack of which nothing is known but what stacks have in common
ONE_OF = 3  # rows of which one chooses
STEP = 0.01  # to which the pace is rounded
ALL = "all sources"


def is_chosen(name: str) -> bool:
    """Whether the row of that id is among those that choose the pace.

    >>> sum(is_chosen(f"row-{number}") for number in range(1000))
    342
    """
    return int(hashlib.sha256(f"pace:{name}".encode()).hexdigest(), 16) % ONE_OF == 0


def own_pace(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """By source the pace with which its chosen rows would have, in the median, no error.

    Of a row that is the compute at full pace over what the measured step leaves for compute.
    """
    found: dict[str, list[float]] = {}
    for each in outcomes:
        if not each.scored or each.held_out or not is_chosen(each.run.id):
            continue
        if not _shares(load_stack(each.stack)):
            continue
        assert each.predicted_s is not None
        assert each.measured_s is not None
        compute_s = each.breakdown_s.get("compute", 0.0)
        left_s = each.measured_s - (each.predicted_s - compute_s)
        if left_s > 0:
            ratio = SHARED.own_kernels["pace"] * compute_s / left_s
            found.setdefault(each.run.source, []).append(ratio)
    return {source: statistics.median(each) for source, each in found.items()}


def shared_pace(of_sources: dict[str, float], without: str = "") -> float:
    """The median over sources, but for one that is left out, rounded; with no other source the
    file's own."""
    others = [pace for source, pace in of_sources.items() if source != without]
    if not others:
        return float(SHARED.own_kernels["pace"])
    return round(statistics.median(others) / STEP) * STEP


def chosen_paces(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The pace that all sources choose together, and the one without each of them."""
    paces = own_pace(outcomes)
    return {ALL: shared_pace(paces)} | {source: shared_pace(paces, source) for source in paces}


def leave_source_out(
    comparison: Comparison, progress: Callable[[str], None] = lambda _: None
) -> dict[str, float]:
    """By source the mean absolute error of its rows with the constants that all other sources
    give; rows whose stack has no such constant are not predicted again."""
    paces = own_pace(comparison.outcomes)
    chosen = [each.run for each in comparison.outcomes if each.scored and _has_constant(each)]

    def without_own(run: PublishedRun, stack: Stack) -> Stack:
        own = {key: value for key, value in stack.own_kernels.items() if key != "host"}
        own["pace"] = shared_pace(paces, run.source)
        return replace(stack, own_kernels=own)

    again = {each.run.id: each for each in predict_runs(chosen, progress, stack_of=without_own)}
    groups: dict[str, list[Outcome]] = {}
    for each in comparison.outcomes:
        groups.setdefault(each.run.source, []).append(again.get(each.run.id, each))
    errors = {source: error_score(rows).mape for source, rows in groups.items()}
    return {source: error for source, error in errors.items() if error is not None}


def _shares(stack: Stack) -> bool:
    return bool(
        stack.own_kernels.get("pace") == SHARED.own_kernels["pace"]
        and "host" not in stack.own_kernels
    )


def _has_constant(outcome: Outcome) -> bool:
    stack = load_stack(outcome.stack)
    return _shares(stack) or "host" in stack.own_kernels
