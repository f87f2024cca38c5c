"""What a comparison comes to: figures that neither sources of few rows nor slow runs bend."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, TypeGuard

from simulator.uncertainty.ranking import TimedPlan
from topologies.errors import SimgptError
from topologies.files.printable import path_shown
from topologies.files.reading import ANSWER_BYTES, UserFile
from validation.published.outcome import Outcome

LEAST_APART, MOST_APART = 1.05, 1.20  # measured times of two plans whose order matters


class SourceError(NamedTuple):
    """A source's scored rows, and their mean error as |ln(predicted / measured)|."""

    rows: int
    error: float


def source_errors(outcomes: Sequence[Outcome]) -> dict[str, SourceError]:
    """That of each source with scored rows, in the rows' order."""
    found: dict[str, list[float]] = {}
    for each in outcomes:
        if each.scored and each.measured_s and each.predicted_s:
            error = abs(math.log(each.predicted_s / each.measured_s))
            found.setdefault(each.run.source, []).append(error)
    return {name: SourceError(len(own), statistics.fmean(own)) for name, own in found.items()}


def weighted_error(errors: Mapping[str, SourceError]) -> float | None:
    """The mean over sources, each weighed by the root of its rows; None without a source.

    Rows of one source share much of their error, so a source of a hundred rows says more than one
    of a single row, but not a hundred times as much.

    >>> weighted_error({"a": SourceError(1, 0.5), "b": SourceError(9, 0.25)})
    0.3125
    """
    if not errors:
        return None
    weights = [math.sqrt(each.rows) for each in errors.values()]
    return math.fsum(
        w * each.error for w, each in zip(weights, errors.values(), strict=True)
    ) / math.fsum(weights)


class PairOrder(NamedTuple):
    """Pairs of plans of one question whose measured times differ by 5 to 20 %, and the share whose
    predicted times are in the same order, as the mean over questions; a tie counts half."""

    pairs: int
    questions: int
    share: float


def pair_order(runs: Iterable[TimedPlan]) -> PairOrder | None:
    """That of runs, in which a plan that ran several times counts once; None without a pair."""
    groups: dict[Hashable, dict[Hashable, list[tuple[float, float]]]] = {}
    for each in runs:
        groups.setdefault(each.question, {}).setdefault(each.plan, []).append(each.times)
    pairs, shares = 0, []
    for plans in groups.values():
        right = [*_in_order([_median(times) for times in plans.values()])]
        pairs += len(right)
        shares += [statistics.fmean(right)] if right else []
    return PairOrder(pairs, len(shares), statistics.fmean(shares)) if shares else None


def _in_order(times: Sequence[tuple[float, float]]) -> Iterable[float]:
    """For each pair that counts 1 where the order is right, 0 where it is not."""
    for (p, m), (q, n) in combinations(times, 2):
        if LEAST_APART <= max(m, n) / min(m, n) <= MOST_APART:
            same = math.isclose(p, q, rel_tol=1e-9)
            yield 0.5 if same else float((p < q) == (m < n))


def _median(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    predicted, measured = zip(*times, strict=True)
    return statistics.median(predicted), statistics.median(measured)


class StoredRunError(SimgptError):
    """A file that is no stored comparison."""


_READ = ("id", "predicted_step_s", "measured_step_s")
_FILE = UserFile("stored comparison", StoredRunError, ANSWER_BYTES)


class Change(NamedTuple):
    """A source's mean error |ln(predicted / measured)| over the rows that a stored comparison has
    too, there and here, and how many rows these are."""

    rows: int
    before: float
    after: float


def stored_errors(path: Path) -> dict[str, float]:
    """By id the |ln(predicted / measured)| of the rows of a comparison that was written as JSON; a
    StoredRunError where the file is none."""
    document = _FILE.document(path)
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise StoredRunError(
            f"{path_shown(path)} is not a {_FILE.noun}: it has no list under 'rows'"
        )
    found = {}
    for row in (each for each in rows if isinstance(each, dict)):
        name, predicted, measured = (row.get(key) for key in _READ)
        if isinstance(name, str) and _is_step(predicted) and _is_step(measured):
            found[name] = abs(math.log(predicted / measured))
    return found


def changes(outcomes: Sequence[Outcome], before: Mapping[str, float]) -> dict[str, Change]:
    """How each source's error changed against the errors of stored rows, by id."""
    found: dict[str, list[tuple[float, float]]] = {}
    for each in outcomes:
        if each.scored and each.predicted_s and each.measured_s and each.run.id in before:
            after = abs(math.log(each.predicted_s / each.measured_s))
            found.setdefault(each.run.source, []).append((before[each.run.id], after))
    return {
        name: Change(len(own), *(statistics.fmean(column) for column in zip(*own, strict=True)))
        for name, own in found.items()
    }


def _is_step(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and 0 < value < math.inf
