"""Where errors sit: found where they were put, and not named where nothing tells them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from validation.published.error_attribution import FEWEST, with_anatomy
from validation.published.outcome import PREDICTED, Outcome, held_out
from validation.published.runs import PublishedRun

EVERY = [f"r-{n}" for n in range(300)]
NAMES = [name for name in EVERY if not held_out(name)]
APART = [name for name in EVERY if held_out(name)]
ROWS = FEWEST + 4


def outcome(name: str, parts: dict[str, float], measured_s: float) -> Outcome:
    return Outcome(
        run=PublishedRun({"id": name, "source": "A"}),
        status=PREDICTED,
        measured_s=measured_s,
        predicted_s=sum(parts.values()),
        breakdown_s=parts,
    )


def rows(count: int, x_is_really: float) -> list[Outcome]:
    """Rows of a second each, with ever more of x, which takes so many times what is predicted."""
    shares = [0.05 * (number + 1) for number in range(count)]
    return [
        outcome(name, {"compute": 1 - x, "tp": x}, 1 - x + x_is_really * x)
        for name, x in zip(NAMES, shares, strict=False)
    ]


def test_an_error_that_grows_with_the_share_of_x_sits_in_x() -> None:
    found = with_anatomy(rows(ROWS, x_is_really=1.5))
    assert {each.error_part for each in found[2:]} == {"tp"}
    assert found[-1].error_known_by == "regression"
    assert found[-1].off_s["tp"] == pytest.approx(-0.5 * 0.6, rel=0.1)  # half of its 0.6 s short


def test_rows_that_are_held_out_have_no_say_in_where_errors_sit() -> None:
    """As many held-out rows in which x takes half of what is predicted would outweigh the rest."""
    others = [
        replace(each, run=PublishedRun({**each.run.columns, "id": name}))
        for each, name in zip(rows(ROWS, x_is_really=0.5), APART, strict=False)
    ]
    alone, found = with_anatomy(rows(ROWS, 1.5)), with_anatomy([*rows(ROWS, 1.5), *others])
    assert len(others) == ROWS
    assert found[:ROWS] == alone


def test_a_part_that_is_too_short_is_not_blamed_for_a_step_that_is_predicted_too_long() -> None:
    """Beside what was traced data lacks 9.6 s, and compute has 9 s too many."""
    row = outcome("axonn-008", {"compute": 6.62 + 9.0, "z": 9.34 + 1.0, "dp": 1.0}, 26.0)
    (found,) = with_anatomy([row])
    assert found.error is not None
    assert found.error > 0
    assert found.off_s["dp"] == pytest.approx(-9.6)
    assert found.error_part == "compute"


def test_an_error_within_the_noise_or_of_too_small_a_source_is_left_unclear() -> None:
    assert {each.error_part for each in with_anatomy(rows(ROWS, 1.01))} == {"unclear"}
    assert {each.error_part for each in with_anatomy(rows(FEWEST - 1, 1.5))} == {"unclear"}


def test_parts_that_rise_and_fall_together_are_not_told_apart() -> None:
    both = [
        replace(each, breakdown_s={"compute": 1 - x, "tp": x / 2, "y": x / 2})
        for each in rows(ROWS, 1.5)
        for x in (each.breakdown_s["tp"],)
    ]
    assert {each.error_part for each in with_anatomy(both)} == {"unclear"}


def test_a_published_trace_is_joined_part_by_part() -> None:
    row = outcome("axonn-008", {"compute": 7.0, "z": 9.0, "dp": 1.0}, 26.6)
    (found,) = with_anatomy([row])
    assert (found.error_part, found.error_known_by) == ("dp", "trace")
    assert found.off_s["dp"] == pytest.approx(1.0 - 10.6)
