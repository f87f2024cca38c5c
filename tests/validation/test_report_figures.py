"""What the figures of answers draw: the points themselves, read back from the axes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.messages import assert_names
from tests.validation.test_headline import RATE, RECORD, made, too_large
from validation.overlay import published_step
from validation.report.answers import Answers, Pair
from validation.report.figures.bars import breakdown
from validation.report.figures.efficiency import efficiency
from validation.report.figures.lines import ladders_of, scaling_lines
from validation.report.figures.scaling_figures import measured, scaling, seconds, time_unit
from validation.report.figures.style import as_svg, canvas, drawing
from validation.report.findings import Ladder


@pytest.fixture(autouse=True)
def drawn() -> Iterator[None]:
    with drawing():
        yield


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), round(float(y), 9)) for x, y in zip(*line.get_data(), strict=True)]


def test_a_line_goes_through_the_fastest_plan_that_fits_at_each_number_of_devices() -> None:
    found = [
        made(devices=16, tokens_per_s=10.0),
        made(devices=16, tokens_per_s=30.0),
        too_large(devices=16, tokens_per_s=90.0),
        made(devices=32, tokens_per_s=50.0),
        made(devices=32, tokens_per_s=20.0),
    ]
    (line,) = scaling_lines(ladders_of(Answers(found))).values()
    assert [(each.devices, each.tokens_per_s) for each in line] == [(16, 30.0), (32, 50.0)]


def test_throughput_is_of_all_devices_and_ideal_where_the_first_point_would_grow_to() -> None:
    """2 and 1.5 TFLOP/s on each of 16 and 32 devices; HFU of 50 and 40 %."""
    line = [made(devices=n, hfu=hfu, mfu=0.1, **{RATE: rate})
            for n, hfu, rate in ((16, 0.5, 2e12), (32, 0.4, 1.5e12))]  # fmt: skip
    left, right = scaling({"ours": line}).axes
    own, ideal = left.get_lines()
    assert points(own) == [(16, 0.032), (32, 0.048)]
    assert points(ideal) == [(16, 0.032), (32, 0.064)]
    (share,) = right.get_lines()
    assert points(share) == [(16, 50.0), (32, 40.0)]


def test_a_published_point_lies_above_the_line_if_its_step_was_shorter() -> None:
    """The same FLOPs in the published step: 1 PFLOP/s times our step over it."""
    published = published_step("gpt-5b", "frontier", 512, 8192)
    assert published is not None
    ours = made(
        model="gpt-5b",
        devices=512,
        step_s=2 * published.step_s,
        plan={**RECORD["plan"], "batch": 8192},
        **{RATE: 1e15 / 512},
    )
    left, right = scaling({"ours": [ours]}).axes
    assert points(left.get_lines()[-1]) == [(512, 2.0)]
    assert points(right.get_lines()[-1]) == [(512, 41.1)]


def test_efficiency_is_drawn_in_per_cent() -> None:
    rungs = [made(devices=n, scaling={"efficiency": share}) for n, share in ((8, 1.0), (16, 0.8))]
    (axes,) = efficiency({"ours": Ladder({}, "weak", rungs)}).axes
    assert points(axes.get_lines()[0]) == [(8, 100.0), (16, 80.0)]


def test_measured_goes_to_the_right_and_predicted_up() -> None:
    pairs = [Pair("tp", "a", "", 2.0, 3.0), Pair("tp", "b", "", 5.0, None)]
    (axes,) = measured(pairs).axes
    (scattered, _) = axes.collections
    assert scattered.get_offsets().tolist() == [[2.0, 3.0]]  # type: ignore[union-attr]
    assert_names(axes.get_xlabel(), "measured", "s")
    assert_names(axes.get_ylabel(), "predicted", "s")


def test_the_parts_of_a_bar_lie_end_to_end_and_what_is_too_small_stands_behind_them() -> None:
    """10 s: 6 of compute, 3.98 of z, and a hundredth each of x and y, too little to be seen."""
    parts = {"compute": 6.0, "z": 3.98, "tp": 0.01, "y": 0.01}
    (axes,) = breakdown([made(step_s=10.0, breakdown_s=parts)]).axes
    bars = [(p.get_x(), p.get_width()) for p in axes.patches]  # type: ignore[attr-defined]
    assert sorted((round(x, 9), round(width, 9)) for x, width in bars) == [
        (0.0, 6.0),
        (6.0, 3.98),
        (9.98, 0.02),
    ]


def test_bars_with_labels_of_two_lines_are_a_tenth_of_an_inch_further_apart() -> None:
    fitting, beyond = (breakdown([each()] * 3).get_figheight() for each in (made, too_large))
    assert beyond - fitting == pytest.approx(3 * 0.1)


@pytest.mark.parametrize(
    ("step_s", "unit"), [(30.0, "s"), (2.0, "s"), (1.9, "ms"), (0.002, "ms"), (0.0019, "µs")]
)
def test_an_axis_begins_with_two_of_its_unit(step_s: float, unit: str) -> None:
    assert time_unit(step_s)[0] == unit


@pytest.mark.parametrize(
    ("value", "shown"),
    [(5e-6, "5.00 µs"), (0.0123, "12.3 ms"), (12.34, "12.3 s"), (5000.0, "5,000 s")],
)
def test_durations_have_the_unit_that_suits_them(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_what_an_svg_refers_to_is_its_own() -> None:
    """Clips and hatches are named in url(), markers and letters in href."""
    figure, (axes,) = canvas(2.0, 2.0)
    axes.bar([1], [1], hatch="//")
    axes.plot([1, 2], [1, 2], marker="o")
    own = []
    for prefix in ("first", "second"):
        text = as_svg(figure, prefix)
        ids = set(re.findall(r'\bid="([^"]*)"', text))
        for pattern in (r'clip-path="url\(#(.*?)\)"', r"fill: url\(#(.*?)\)", 'href="#(.*?)"'):
            named = set(re.findall(pattern, text))
            assert named
            assert named <= ids
        own.append(ids)
    assert not own[0] & own[1]
