"""The answers of `simgpt plan-run`, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from topologies.records import record
from validation.report.answer_files import Reader
from validation.report.words import several


@record(slots=False)
class Calendar:
    """When a run ends, in the middle and on both sides, and one life of it: `progress` has moments
    and shares of the training that are durable then, `jobs_s` starts and ends; none of these where
    it has too many saves."""

    origin: str
    model: str
    where: str
    start: str
    ends: tuple[str, str, str]
    effective_share: float
    expected_s: float
    shares: Mapping[str, float]
    interval_s: float
    progress: Sequence[tuple[float, float]] = ()
    failures_s: Sequence[float] = ()
    failures: int = 0
    jobs_s: Sequence[tuple[float, float]] = ()
    saves: int = 0


def calendar_of(document: Mapping[str, Any], origin: str) -> Calendar:
    """The calendar of an answer, as it stands in JSON."""
    of = Reader(document, origin)
    found = Calendar(
        origin=origin,
        model=of.text("model"),
        where=f"{several(of.whole('nodes'), 'node')} of {of.text('machine')}",
        start=of.text("start"),
        ends=(of.text("low_end"), of.text("end"), of.text("high_end")),
        effective_share=of.positive("effective_share"),
        expected_s=of.positive("expected_s"),
        shares=of.numbers("shares"),
        interval_s=of.within("interval").positive("interval_s"),
    )
    if document["calendar"] is None:
        return found
    return _with_life(found, of.within("calendar"))


def _with_life(found: Calendar, life: Reader) -> Calendar:
    return replace(
        found,
        progress=_pairs(life, "progress"),
        failures_s=life.list_of_numbers("failures_s", 0),
        failures=int(life.number("failures")),
        jobs_s=_pairs(life, "jobs_s"),
        saves=int(life.number("saves")),
    )


def _pairs(life: Reader, key: str) -> list[tuple[float, float]]:
    """A list of pairs of numbers."""
    rows = life.document.get(key)
    every = rows if isinstance(rows, list) else []
    flat = [number for pair in every if isinstance(pair, list) for number in pair]
    numbers = Reader({key: flat}, life.origin).list_of_numbers(key, 2)
    return list(zip(numbers[::2], numbers[1::2], strict=False))
