"""Several questions on one page: each has its own section, headline, bars and labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simgpt.asked_again import ASKING
from tests.messages import assert_names, names
from tests.validation.test_headline import RECORD, made, too_large
from tests.validation.test_report import answer, written
from validation.report.answer_files import ReportError
from validation.report.answers import Answers, read_answers
from validation.report.facts import facts_of, table_of
from validation.report.figures.bars import breakdown
from validation.report.figures.labels import labels
from validation.report.figures.side_by_side import differences
from validation.report.figures.style import canvas, drawing, fitting_legend
from validation.report.findings import Finding
from validation.report.questions import question_sections, questions_of, runner_up
from validation.report.write_report import write_report

pytestmark = pytest.mark.usefixtures("figures_left_out")

FLOPS = "model_flops_per_s_per_device"


def ranged(step_s: float, low_s: float, high_s: float, **changes: Any) -> Any:
    return made(step_s=step_s, low_step_s=low_s, high_step_s=high_s, **changes)


def test_answers_for_other_devices_or_batches_are_of_other_questions() -> None:
    found = [
        made(devices=32),
        made(devices=64),
        made(devices=32, plan_string="z=2"),
        made(devices=32, plan={**RECORD["plan"], "batch": 64}),
    ]
    groups = questions_of(Answers(found))
    assert [[found.index(each) for each in group.predictions] for group in groups] == [
        [0, 2],
        [1],
        [3],
    ]


def test_what_was_set_of_a_machine_makes_another_answer_to_the_same_question() -> None:
    usual, changed = made(), made(settings={"device.launch": "30 us"})
    assert usual.machine != changed.machine
    (group,) = questions_of(Answers([usual, changed]))
    assert group.predictions == [usual, changed]
    assert runner_up(usual, [group]) is changed


def test_a_sweep_over_devices_is_one_question_and_a_search_joins_that_of_its_best() -> None:
    small, large, alone, best = made(devices=32), made(devices=64), made(), made(plan_string="z=2")
    sweep = Finding("throughput", large, [small, large])
    search = Finding("time", best, [best], proof=("2 plans.", 0.0))
    other = made(devices=64)
    every = [small, large, best, alone, other]
    groups = questions_of(Answers(every, findings=[sweep, search]))
    assert [group.predictions for group in groups] == [[small, large], [best, alone], [other]]
    assert [group.findings for group in groups] == [[sweep], [search], []]


def test_each_question_has_its_headline_and_what_failed_stands_last() -> None:
    answers = Answers([made(devices=32), made(devices=64)], failures=[("z=5", "why not")])
    with drawing():
        *each, failed = question_sections(answers, questions_of(answers))
    assert [section.anchor for section in each] == ["question-1", "question-2"]
    assert_names(each[0].title, "32", "frontier")
    assert_names(each[1].title, "64", "frontier")
    assert [row for table in failed.tables for row in table.rows] == [("z=5", "why not")]


def test_the_head_of_a_page_of_several_questions_links_to_each(tmp_path: Path) -> None:
    small, large = answer(devices=16), answer(devices=32)
    paths = [written(tmp_path, name, record) for name, record in (("a", small), ("b", large))]
    page = tmp_path / "r.html"
    write_report(
        read_answers(paths), {}, asking=ASKING, page=page, folder=None, progress=lambda _: None
    )
    text = page.read_text(encoding="utf-8")
    for number in (1, 2):
        assert f'<li><a href="#question-{number}">' in text
        assert f'<section id="question-{number}">' in text
    assert 'id="predictions"' not in text
    assert len(re.findall(r'id="([^"]+)"', text)) == len(set(re.findall(r'id="([^"]+)"', text)))


def test_the_runner_up_fits_and_is_another_plan() -> None:
    rate = {FLOPS: 9e12}
    best, again = made(**rate), made(**rate)
    large = too_large(plan_string="z=8", **rate)
    other = made(plan_string="z=2")
    groups = questions_of(Answers([best, again, large, other]))
    assert runner_up(best, groups) is other
    assert runner_up(best, questions_of(Answers([best, large]))) is None
    assert runner_up(None, groups) is None


def test_labels_have_every_key_that_differs_and_none_that_does_not() -> None:
    """z tells all three apart, and yet zero is said, which differs too; recompute is the same."""
    plans = ("tp=1,z=4,dp=8,zero=0", "tp=1,z=2,dp=16,zero=1", "tp=1,z=1,dp=32,zero=1")
    found = [made(plan_string=f"{plan},recompute=full") for plan in plans]
    assert labels(found) == ["z=4, zero=0", "z=2, zero=1", "z=1, zero=1"]


@pytest.mark.parametrize(("length", "shown"), [(20, 91), (34, 93)])
def test_the_last_line_of_a_label_has_room_for_two_and_is_cut_behind_them(
    length: int, shown: int
) -> None:
    """A line has room for 46 characters. Three values of 20 are 91 with their keys and commas, and
    of longer ones 92 are shown, and that there are more."""
    keys = ("tp", "y", "z", "dp", "recompute", "overlap", "schedule")
    plans = (",".join(f"{key}={letter * length}" for key in keys) for letter in "ab")
    *_, last = labels([made(plan_string=plan) for plan in plans])[0].splitlines()
    assert (len(last), last.endswith("…")) == (shown, shown > 2 * 46)


def test_whiskers_reach_from_the_low_to_the_high_end_of_a_steps_range() -> None:
    """A step of 3 s within 2.5 and 4 s, and one whose range is not known."""
    with drawing():
        axes: Any
        (axes,) = breakdown([ranged(3.0, 2.5, 4.0), made(step_s=3.0, plan_string="z=2")]).axes
    (whisker,) = [segment for lines in axes.collections for segment in lines.get_segments()]
    assert [tuple(point) for point in whisker] == [(2.5, 0.0), (4.0, 0.0)]
    assert dict(facts_of(ranged(3.0, 2.5, 4.0), step=True))["80 % range"] == ("2.50 s to 4.00 s")


@pytest.mark.parametrize(("low_s", "high_s"), [(3.5, 4.0), (2.0, 2.5), (4.0, 2.0)])
def test_a_step_outside_its_own_range_is_refused(low_s: float, high_s: float) -> None:
    with pytest.raises(ReportError, check=names("step_s", "3", "low_step_s")):
        ranged(3.0, low_s, high_s)


@pytest.mark.parametrize("length", [5, 40, 70])
def test_a_legend_has_as_many_columns_as_fit(length: int) -> None:
    from matplotlib.patches import Patch

    with drawing():
        figure, _ = canvas(8.4, 3.0)
        names = [f"{number}" * length for number in range(6)]
        fitting_legend(figure, [Patch() for _ in names], names, "outside upper right")
        figure.canvas.draw()
        legend: Any = figure.legends[0]
        assert len(figure.legends) == 1
        assert legend.get_window_extent().x0 >= 0
        assert legend.get_window_extent().width <= figure.bbox.width
        assert (length > 5) == (legend._ncols < 4)


def test_rows_are_sorted_by_seconds_and_bytes_and_not_by_their_words() -> None:
    table = table_of([ranged(0.5, 0.4, 0.6), made(step_s=2.0)])
    step = table.columns.index("step")
    assert [row[step] for row in table.rows] == ["500 ms", "2.00 s"]
    assert table.values["step"] == [0.5, 2.0]
    assert set(table.values) <= set(table.columns)
    assert [mark["high"] for mark in table.marks] == ["0.6", "2"]
    assert table.is_sortable
    assert not table_of([made()]).is_sortable


def test_side_by_side_stand_the_parts_that_are_a_hundredth_of_either_step() -> None:
    one = made(step_s=2.0, breakdown_s={"compute": 1.5, "z": 0.49, "dp": 0.01})
    other = made(step_s=1.0, breakdown_s={"compute": 0.985, "dp": 0.015})
    rows = {name.split()[-1]: values for name, *values in differences(one, other)}
    assert rows["step"] == ["2.00 s", "1.00 s"]
    assert rows["z"] == ["490 ms", "0.00 µs"]
    assert rows["dp"] == ["10.0 ms", "15.0 ms"]
    small = made(step_s=2.0, breakdown_s={"compute": 1.985, "dp": 0.015})
    assert not any(name.endswith(" data") for name, *_ in differences(small, small))


def test_a_page_has_two_plans_of_one_question_with_their_timelines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def noted(_: object, folder: Path, name: str) -> list[Path]:
        drawn.append(name)
        return [folder / f"{name}.svg"]

    monkeypatch.setattr("validation.report.write_report.write_figure", noted)
    paths = [
        written(tmp_path, f"{number}.json", answer(plan, 8))
        for number, plan in enumerate(("z=4,dp=rest", "dp=rest"))
    ]
    page = tmp_path / "r.html"
    write_report(
        read_answers(paths), {}, asking=ASKING, page=page, folder=tmp_path, progress=lambda _: None
    )
    text = page.read_text(encoding="utf-8")
    assert '<section id="side-by-side">' in text
    assert 'id="beside" data-steps="0 1" data-ranks="2"' in text
    assert text.count('<figure class="still"') == 2  # of the two interactive timelines
    assert "side-by-side" in drawn
