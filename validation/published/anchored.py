"""Published rows anchored to each other: what one measured run is worth.

Each scored row is anchored to the nearest different rows of its source, stack and device, at least
`DIFFERENT` doublings away, as `--anchor` does (`simulator/uncertainty/anchors.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from simulator.uncertainty.anchors import (
    MOST,
    Anchor,
    Bin,
    Used,
    correction,
    distance,
    span_at,
)
from topologies.records import record
from validation.moe.comparison import validate_moe
from validation.published.comparison import validate_published
from validation.published.outcome import Outcome
from validation.published.runs import RunsError

DIFFERENT = 1.0  # doublings from which on two rows are different configurations


@record
class AnchoredRow:
    """A row, what is predicted for it with `used` anchors, and the same of the formula that a
    simulator has to beat; `within` says whether the measured step lies in the anchored range, whose
    half-width is `half_width`."""

    outcome: Outcome
    used: tuple[Used, ...]
    anchored_s: float
    formula_s: float | None
    within: bool
    half_width: float

    @property
    def error(self) -> float:
        """Relative error of the anchored step."""
        assert self.outcome.measured_s
        return self.anchored_s / self.outcome.measured_s - 1

    @property
    def formula_error(self) -> float | None:
        """That of the formula, anchored to the same rows."""
        assert self.outcome.measured_s
        return None if self.formula_s is None else self.formula_s / self.outcome.measured_s - 1

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "id": self.outcome.run.id,
            "source": self.outcome.run.source,
            "held_out": self.outcome.held_out,
            "anchors": [each.anchor.name for each in self.used],
            "doublings": self.used[0].distance.total,
            "measured_step_s": self.outcome.measured_s,
            "predicted_step_s": self.outcome.predicted_s,
            "anchored_step_s": self.anchored_s,
            "blind_error": self.outcome.error,
            "anchored_error": self.error,
            "anchored_formula_error": self.formula_error,
            "within_range": self.within,
            "half_width": self.half_width,
        }


@record
class AnchoredScore:
    """Mean errors of some rows: blind, with one anchor, with up to `MOST`, and of the anchored
    formula; the share of steps in their ranges, and the ranges' median half-widths."""

    rows: int
    blind: float
    one: float
    several: float
    formula: float | None
    within: float
    blind_half_width: float
    half_width: float

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return asdict(self)


@record
class AnchoredComparison:
    """Rows that have an anchor, by one and by several."""

    one: tuple[AnchoredRow, ...]
    several: tuple[AnchoredRow, ...]

    def chosen(self, wanted: Callable[[AnchoredRow], bool]) -> AnchoredComparison:
        """That of some of the rows, of which the ones with a single anchor decide."""
        kept = {each.outcome.run.id for each in self.one if wanted(each)}
        return AnchoredComparison(
            tuple(each for each in self.one if each.outcome.run.id in kept),
            tuple(each for each in self.several if each.outcome.run.id in kept),
        )

    @property
    def by_source(self) -> dict[str, AnchoredScore]:
        """A score for each source, in the rows' order."""
        names = dict.fromkeys(each.outcome.run.source for each in self.one)
        return {name: self._of_source(name).score for name in names}

    def _of_source(self, name: str) -> AnchoredComparison:
        return self.chosen(lambda each: each.outcome.run.source == name)

    @property
    def score(self) -> AnchoredScore:
        """That of all rows, each counted alike."""
        formula = [each.formula_error for each in self.one if each.formula_error is not None]
        return AnchoredScore(
            rows=len(self.one),
            blind=_mean(each.outcome.error or 0.0 for each in self.one),
            one=_mean(each.error for each in self.one),
            several=_mean(each.error for each in self.several),
            formula=_mean(formula) if formula else None,
            within=statistics.fmean(each.within for each in self.one),
            blind_half_width=statistics.median(_half_width(each.outcome) for each in self.one),
            half_width=statistics.median(each.half_width for each in self.one),
        )

    def mean_of_sources(self, measure: str) -> float | None:
        """The mean of the sources' figures."""
        found = [getattr(score, measure) for score in self.by_source.values()]
        known = [each for each in found if each is not None]
        return statistics.fmean(known) if known else None

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "rows": [each.as_dict() for each in self.one],
            "by_source": {name: each.as_dict() for name, each in self.by_source.items()},
            "by_difference": {
                name: each.score.as_dict() for name, each in by_difference(self).items()
            },
            "mean_of_sources": {
                each.name: self.mean_of_sources(each.name)
                for each in fields(AnchoredScore)
                if each.name != "rows"
            },
        }


def by_difference(found: AnchoredComparison) -> dict[str, AnchoredComparison]:
    """Rows by what differs from their anchor; kinds without a row are left out."""
    kinds = {
        "the number of devices alone": _only("devices "),
        "the plan alone": lambda each: not each.used[0].distance.question,
        "the model": lambda each: _says(each, "active parameters "),
    }
    parts = {name: found.chosen(wanted) for name, wanted in kinds.items()}
    return {name: part for name, part in parts.items() if part.one}


def _only(word: str) -> Callable[[AnchoredRow], bool]:
    def alone(row: AnchoredRow) -> bool:
        differs = row.used[0].distance.differs
        return len(differs) == 1 and differs[0].startswith(word)

    return alone


def _says(row: AnchoredRow, word: str) -> bool:
    return any(each.startswith(word) for each in row.used[0].distance.differs)


def compare_anchored(
    outcomes: Sequence[Outcome], bins: Sequence[Bin], least: float = DIFFERENT
) -> AnchoredComparison:
    """Scored rows anchored to those of their source that lie at least so many doublings away and
    are not held out; `bins` give the ranges."""
    one, several = [], []
    for outcome, near in neighbours(outcomes, least):
        one.append(_anchored(outcome, near[:1], bins))
        several.append(_anchored(outcome, near, bins))
    return AnchoredComparison(tuple(one), tuple(several))


@record
class Near:
    """A row that may anchor another, and how far it is away."""

    outcome: Outcome
    used: Used


def neighbours(
    outcomes: Sequence[Outcome], least: float
) -> Iterator[tuple[Outcome, tuple[Near, ...]]]:
    """Each scored row with the rows that may anchor it, the nearest first; none without any."""
    for group in _groups(outcomes):
        known = [(each, _anchor(each)) for each in group if not each.held_out]
        for outcome in group:
            assert outcome.place is not None
            found = [
                Near(each, Used(anchor, distance(anchor.place, outcome.place)))
                for each, anchor in known
                if each is not outcome
            ]
            near = [n for n in found if n.used.distance.total >= least and n.used.distance.weight]
            near.sort(key=lambda each: (each.used.distance.total, each.used.anchor.name))
            if near:
                yield outcome, tuple(near[:MOST])


def _groups(outcomes: Sequence[Outcome]) -> Iterable[list[Outcome]]:
    """Scored rows of the same source, stack, device and kind of model."""
    groups: dict[tuple[str, str, str, bool], list[Outcome]] = {}
    for each in outcomes:
        if each.scored and each.place is not None:
            key = each.run.source, each.stack, each.place.device, each.place.experts
            groups.setdefault(key, []).append(each)
    return groups.values()


def _anchor(outcome: Outcome) -> Anchor:
    assert outcome.place is not None
    assert outcome.measured_s
    assert outcome.predicted_s
    return Anchor(outcome.run.id, outcome.place, outcome.measured_s, outcome.predicted_s)


def _anchored(outcome: Outcome, near: Sequence[Near], bins: Sequence[Bin]) -> AnchoredRow:
    assert outcome.place is not None
    assert outcome.measured_s
    assert outcome.predicted_s
    used = tuple(each.used for each in near)
    anchored_s = outcome.predicted_s * math.exp(correction(used))
    span = span_at(bins, used[0].distance, experts=outcome.place.experts)
    return AnchoredRow(
        outcome,
        used,
        anchored_s,
        _formula_s(outcome, near[0]),
        within=anchored_s * span.low <= outcome.measured_s <= anchored_s * span.high,
        half_width=(span.high - span.low) / 2,
    )


def _formula_s(outcome: Outcome, near: Near) -> float | None:
    """The formula's step, anchored to the nearest row."""
    other = near.outcome
    if not outcome.formula_s or not other.formula_s or not other.measured_s:
        return None
    factor = other.measured_s / other.formula_s
    return float(outcome.formula_s * factor**near.used.distance.weight)


def outcomes_of_both(
    path: Path | None = None,
    sources: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """The outcomes of a file, or of all runs that come with simgpt: dense models and experts. A
    RunsError if no row is of the sources."""
    if path is not None:
        return list(validate_published(path, sources, progress).outcomes)
    found: dict[str, Outcome] = {}
    refusal = None
    for validate in (validate_published, validate_moe):
        try:
            rows = validate(None, sources, progress).outcomes
        except RunsError as error:
            refusal = error
        else:
            for each in rows:
                found.setdefault(each.run.id, each)
    if refusal is not None and not found:
        raise refusal
    return list(found.values())


def _half_width(outcome: Outcome) -> float:
    assert outcome.low_s
    assert outcome.high_s
    assert outcome.predicted_s
    return (outcome.high_s - outcome.low_s) / 2 / outcome.predicted_s


def _mean(errors: Iterable[float]) -> float:
    return statistics.fmean(map(abs, errors))
