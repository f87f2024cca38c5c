"""What a report shows of steps with noise: the samples themselves, read back from the axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.messages import assert_names
from tests.validation.test_headline import made
from validation.report.answer_files import ReportError
from validation.report.figures.noise_figures import drawn_parts, noise_figure, signed_seconds
from validation.report.figures.style import drawing
from validation.report.noise_section import variability

FOUND: dict[str, Any] = {
    "noise": {"jitter": 0.02, "slow_share": 0.001, "slow_by": 0.05, "spread": 0.0},
    "seed": 3,
    "samples": 5,
    "noise_free_step_s": 10.0,
    "median_step_s": 10.5,
    "interval_step_s": [10.25, 11.0],
    "mean_cost": 0.06,
    "excess_s": {"z": 0.5, "pp": 0.2, "own ops": -0.09, "dp": 0.0001, "end": 0.0},
    "amplifier": "z",
    "one_slow_device": {"rank": 0, "slower_by": 0.05, "step_s": 10.4, "cost": 0.04},
    "steps_s": [10.25, 10.5, 10.5, 10.75, 11.0],
}


@pytest.fixture(autouse=True)
def drawn() -> Iterator[None]:
    with drawing():
        yield


def test_every_sample_is_in_a_bin_and_lines_stand_where_the_steps_are() -> None:
    left: Any = noise_figure(FOUND).axes[0]
    _, *bars = left.patches  # behind the range of the samples
    assert [bar.get_height() for bar in bars] == [1, 2, 0, 1, 1]
    free, slow = (line.get_xdata()[0] for line in left.get_lines())
    assert (free, slow) == (10.0, 10.4)


def test_parts_of_the_excess_are_bars_the_largest_first_without_the_smallest() -> None:
    right: Any = noise_figure(FOUND).axes[1]
    assert [bar.get_width() for bar in right.patches] == pytest.approx([500, 200, -90])
    names = [tick.get_text() for tick in right.get_yticklabels()]
    assert_names(names[0], "z")
    assert len({*names}) == 3
    assert [text.get_text() for text in right.texts] == [" 500 ms", " 200 ms", " -90.0 ms"]
    assert drawn_parts({"z": 0.0}) == {}
    assert signed_seconds(-2.0) == "-2.00 s"


def test_without_any_excess_the_figure_is_drawn_all_the_same() -> None:
    steps = [10.0, 10.0]
    found = {**FOUND, "excess_s": {"z": 0.0}, "steps_s": steps, "interval_step_s": steps}
    assert list(noise_figure(found).axes[1].patches) == []


def test_the_section_is_of_the_first_answer_that_has_samples() -> None:
    assert variability([None, made()]) is None
    section = variability([None, made(), made(variability=FOUND)])
    assert section is not None
    assert_names(section.texts[0], "5", "2 %", "0.1 %", "5 %")
    facts, excess = section.tables
    told = {value: words for words, value in facts.rows}
    assert_names(told["10.2 s to 11.0 s"], "90 %")
    assert_names(told["+4.0 %"], "5 %")
    part, seconds = excess.rows[0]
    assert (part.split()[-1], seconds) == ("z", "500 ms")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps_s", []),
        ("steps_s", [1.0, "tp"]),
        ("interval_step_s", [1.0]),
        ("excess_s", {"z": None}),
        ("one_slow_device", {"step_s": 1.0}),
        ("median_step_s", "fast"),
        ("noise_free_step_s", 0),
    ],
)
def test_an_answer_that_lacks_something_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ReportError, match=key):
        made(variability={**FOUND, key: value})
