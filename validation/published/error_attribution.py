"""Where a row's error most likely sits: read off a trace, or inferred from the source's other rows.

With a trace the rule is plain: the part whose time differs most from what was traced. Without one,
the relative errors of a source's rows are regressed on the shares that the parts have of the
predicted steps, each part's coefficient drawn to zero (ridge): a source whose rows err more the
more of x they have errs in x. A row's part is the one with the largest coefficient times share.
That is a likelihood and no proof: parts whose shares rise and fall together cannot be told apart.
So no part is named where the source has fewer rows than FEWEST, where the error is within NOISE, or
where no part explains twice as much of the row's error as every other part does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from topologies.files.reading import shipped_toml
from validation.published.outcome import Outcome

FEWEST = 8
NOISE = 0.03  # runs differ by about as much from day to day: data/published_runs.md
SPREAD = 0.05 / 0.3  # of a row's noise over what a part may be wrong by, before looking
CLEAR = 2.0
UNCLEAR, TRACE, REGRESSION = "unclear", "trace", "regression"


def with_anatomy(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes, each scored one with the part that its error most likely sits in.

    Rows that are held out take part in no regression.
    """
    by_source: dict[str, list[Outcome]] = {}
    for each in outcomes:
        if each.scored and not each.held_out:
            by_source.setdefault(each.run.source, []).append(each)
    wrong = {source: _wrong_by(rows) for source, rows in by_source.items()}
    return [_dissected(each, wrong.get(each.run.source, {})) for each in outcomes]


def _dissected(each: Outcome, wrong: Mapping[str, float]) -> Outcome:
    if not each.scored:
        return each
    traced = traces().get(each.run.id)
    off_s = _off_trace(each, traced) if traced else _off_by(each, wrong)
    part = UNCLEAR
    if abs(each.error or 0.0) > NOISE:
        part = _largest(off_s, each.error or 0.0, clear=1.0 if traced else CLEAR)
    known_by = UNCLEAR if part == UNCLEAR else TRACE if traced else REGRESSION
    return replace(each, error_part=part, error_known_by=known_by, off_s=off_s)


def _off_trace(each: Outcome, traced: Mapping[str, float]) -> dict[str, float]:
    return {part: each.breakdown_s.get(part, 0.0) - seconds for part, seconds in traced.items()}


def _off_by(each: Outcome, wrong: Mapping[str, float]) -> dict[str, float]:
    return {part: -wrong.get(part, 0.0) * seconds for part, seconds in each.breakdown_s.items()}


def _largest(off_s: Mapping[str, float], error: float, clear: float) -> str:
    """The part that is off most to the error's side, if `clear` times as much as any other."""
    side = {part: math.copysign(1.0, error) * seconds for part, seconds in off_s.items()}
    ordered = sorted(side, key=lambda part: -side[part])
    if not ordered or side[ordered[0]] <= 0:
        return UNCLEAR
    second = side[ordered[1]] if len(ordered) > 1 else 0.0
    return ordered[0] if side[ordered[0]] >= clear * second else UNCLEAR


def _wrong_by(rows: Sequence[Outcome]) -> dict[str, float]:
    """By what share each part's time is likely to be wrong, measured over predicted less one."""
    if len(rows) < FEWEST:
        return {}
    parts = list(dict.fromkeys(part for each in rows for part in each.breakdown_s))
    shares = np.array(
        [[each.breakdown_s.get(part, 0.0) / (each.predicted_s or 1.0) for part in parts]
         for each in rows]
    )  # fmt: skip
    errors = np.array([(each.measured_s or 0.0) / (each.predicted_s or 1.0) - 1 for each in rows])
    normal = shares.T @ shares + SPREAD**2 * np.eye(len(parts))
    return dict(zip(parts, np.linalg.solve(normal, shares.T @ errors).tolist(), strict=True))


@cache
def traces() -> dict[str, dict[str, float]]:
    """Seconds of a step by part, of rows whose trace was published: data/traces.toml."""
    found: dict[str, dict[str, float]] = shipped_toml("validation", "data/traces.toml")["seconds"]
    return found
