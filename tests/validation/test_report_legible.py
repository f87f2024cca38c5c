"""Reports: words that count and break well, and what stands in a figure is inside it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from simgpt.asked_again import ASKING
from tests.validation.test_headline import made
from tests.validation.test_report import answer, page_of, written
from validation.report.answers import read_answers
from validation.report.figures.bars import breakdown
from validation.report.figures.drawn_step import MemoryCurve
from validation.report.figures.step_figures import memory
from validation.report.figures.style import drawing
from validation.report.write_report import write_report

pytestmark = pytest.mark.usefixtures("figures_left_out")


def test_counts_are_of_one_or_of_several(tmp_path: Path) -> None:
    failed = {"id": "2", "point": {"plan.z": 5}, "status": "infeasible", "reason": "z=5 does not"}
    run = {"model": "tiny-2m", "plan_string": "dp=2", "losses": [1.0], "step_s": 2.0}
    written(tmp_path, "a.jsonl", {"point": {"plan.z": 4}, "prediction": answer()}, failed)
    written(tmp_path, "run.json", {**run, "predicted_step_s": 3.0})
    page = tmp_path / "report.html"
    write_report(
        read_answers([tmp_path]), {}, asking=ASKING, page=page, folder=None, progress=lambda _: None
    )
    text = page.read_text(encoding="utf-8")
    assert re.search(r"50\.0\N{NO-BREAK SPACE}%[^<]*\b1 step\b", text)
    assert not re.search(r"\b1 (points|steps)\b", text)


def test_a_unit_stays_with_its_number_except_in_commands(tmp_path: Path) -> None:
    text = page_of(tmp_path, {**answer(), "asked": {"command": "simgpt --gap 2 % 3 s 4 GiB"}})
    page = re.sub(r"<(svg|style|script).*?</\1>", "", text, flags=re.DOTALL)
    parted = re.findall(r"[^<>]*\d (?:%|(?:m?s|GiB|TFLOP/s)\b)[^<>]*", page)
    assert parted == ["simgpt --gap 2 % 3 s 4 GiB"]
    for unit in ("%", "ms", "GiB"):
        assert f"\N{NO-BREAK SPACE}{unit}" in page


def test_the_range_of_a_step_is_seen_on_a_bar_as_dark_as_its_line() -> None:
    """A step of 10 s, from 5 s: between 6 and 9 s the bar is black, but for the line's edge."""
    whole = made(step_s=10.0, breakdown_s={"other": 10.0}, low_step_s=5.0, high_step_s=15.0)
    with drawing():
        (axes,) = breakdown([whole]).axes
        axes.figure.canvas.draw()
    drawn = np.asarray(axes.figure.canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined]
    (left, low), (right, high) = axes.transData.transform([(6.0, 0.28), (9.0, -0.28)])
    inside = drawn[len(drawn) - int(high) : len(drawn) - int(low), int(left) : int(right)]
    assert (inside.min(axis=(0, 2)) < 40).all()
    assert (inside.max(axis=(0, 1)) > 200).all()


def test_a_capacity_far_above_the_peak_is_told_of_inside_the_plot(tmp_path: Path) -> None:
    """A device with three times the peak has a line; one with ten times has words alone."""
    with drawing():
        for times, lines in ((3, 1), (10, 0)):
            curve = MemoryCurve(0, [0.0, 1.0], {"parameters": [2**30, 2**30]})
            (axes,) = memory(curve, 1.0, times * 2**30).axes
            (words,) = axes.texts
            assert f"{times} GiB" in words.get_text()
            assert ("10 times" in words.get_text()) == (times == 10)
            assert len(axes.get_lines()) == lines
            axes.figure.canvas.draw()
            inside, text = axes.get_window_extent(), words.get_window_extent()
            assert inside.y0 < text.y0
            assert text.y1 < inside.y1
