"""Reports: which predictions stand among the bars, in which order, and which lie on one line."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from simgpt.asked_again import ASKING
from simulator.uncertainty.fitting import DOES_NOT_FIT
from tests.messages import assert_names
from tests.validation.test_report import answer, written
from validation.report.answers import Answers, read_answers
from validation.report.figures.bars import MOST_BARS, breakdown
from validation.report.figures.efficiency import efficiency
from validation.report.figures.labels import labels
from validation.report.figures.lines import ladders_of, scaling_lines
from validation.report.figures.scaling_figures import scaling
from validation.report.findings import search_of, sweep_of
from validation.report.ranking import chosen, ranked
from validation.report.read_prediction import Answer
from validation.report.write_report import write_report

pytestmark = pytest.mark.usefixtures("figures_left_out")

RATE = "model_flops_per_s_per_device"
RECOMPUTE = ("full", "selective", "none")
BEST = 25


PLAIN = answer()


def row(number: int, rate: float, fits: bool = True, **scaling: Any) -> dict[str, Any]:
    """A row of a sweep over z and recompute, of so many FLOP/s."""
    recompute = RECOMPUTE[number % len(RECOMPUTE)]
    return {
        "point": {"plan.z": number, "plan.recompute": recompute},
        "prediction": {
            **PLAIN,
            RATE: rate,
            "step_s": 1 / rate,
            "breakdown_s": {"compute": 1 / rate},
            "plan_string": f"tp=1,z={number},recompute={recompute}",
            "memory": {**PLAIN["memory"], "verdict": "fits" if fits else "does not fit"},
        },
        **({"scaling": scaling} if scaling else {}),
    }


def sweep(*rows: dict[str, Any], **study: Any) -> Answers:
    found, failures, finding = sweep_of([(f"row {n}", each) for n, each in enumerate(rows)], study)
    return Answers(found, (), failures, [finding])


def page_of(tmp_path: Path, answers: Answers) -> str:
    page = tmp_path / "report.html"
    write_report(answers, {}, asking=ASKING, page=page, folder=None, progress=lambda _: None)
    return unescape(page.read_text(encoding="utf-8")).replace("\N{NO-BREAK SPACE}", " ")


def drawn(answers: Answers) -> list[Answer]:
    return chosen(ranked(answers), answers, answers.findings[0].best, MOST_BARS)


def test_a_search_s_answer_is_one_of_its_plans_not_what_needs_less_memory() -> None:
    slow, fast = row(1, 1.0)["prediction"], row(2, 2.0)["prediction"]
    found, finding = search_of({"plans": [slow], "memory_front": [fast]}, "a.json")
    assert finding.best is not None
    assert finding.best.plan == slow["plan_string"]
    ordered = ranked(Answers(found, findings=[replace(finding, proof=("best", None))]))
    assert [each.front for each in ordered] == ["plans", "memory_front"]


def test_the_bars_of_a_sweep_are_its_best_and_the_first_is_the_answer() -> None:
    """Of 30 rows the 26th is the best, and each before it better than the last."""
    found = sweep(*(row(n, 1.0 + n if n <= BEST else 0.5) for n in range(30)))
    bars = drawn(found)
    assert len(bars) == MOST_BARS
    assert bars[0] is found.findings[0].best is found.predictions[BEST]
    assert [bar.flops_per_s for bar in bars] == sorted((b.flops_per_s for b in bars), reverse=True)


def test_bars_are_ordered_by_what_the_study_is_sorted_by() -> None:
    records = [row(n, 1.0) for n in range(3)]
    for record, nbytes in zip(records, (3, 1, 2), strict=True):
        record["prediction"]["memory"] = {**PLAIN["memory"], "peak_bytes": nbytes}
    assert [bar.peak_bytes for bar in drawn(sweep(*records, sort="memory"))] == [1, 2, 3]


def test_a_plan_that_does_not_fit_comes_last_and_says_so(tmp_path: Path) -> None:
    found = sweep(row(0, 9.0, fits=False), row(1, 1.0), row(2, 2.0))
    bars = drawn(found)
    assert [bar.fits for bar in bars] == [True, True, False]
    figure = breakdown(bars, bars, bars[0])
    axes: Any = figure.axes[0]
    first, *_, last = [
        bar[0].get_facecolor() for bar in axes.containers if bar.get_label() == "compute"
    ]
    assert first != last
    assert figure.legends[0].get_patches()[0].get_facecolor() == first
    ticks = axes.get_yticklabels()
    assert [DOES_NOT_FIT in tick.get_text() for tick in ticks] == [False, False, True]
    assert [tick.get_fontweight() for tick in ticks] == ["bold", "normal", "normal"]
    assert not OMITTED.search(page_of(tmp_path, found))


# A sentence of how many predictions have a bar, and how many there are.
OMITTED = re.compile(r"\b(\d+) of (\d+) predictions\b")


def test_a_page_says_how_many_predictions_have_no_bar(tmp_path: Path) -> None:
    page = page_of(tmp_path, sweep(*(row(n, 1.0 + n) for n in range(30))))
    counts = OMITTED.search(page)
    assert counts is not None
    assert counts.groups() == ("16", "30")
    rows = re.findall(r"tp=1,<wbr>z=(\d+),", page.partition("<table")[2])
    assert rows[:3] == ["29", "28", "27"]


def test_every_bar_says_what_the_sweep_varies_though_all_that_are_drawn_share_it() -> None:
    every = sweep(*(row(n, 1.0 + (n % 3 == 0)) for n in range(60))).predictions
    full = [each for each in every if "recompute=full" in each.plan][:MOST_BARS]
    assert labels(full)[0] == "z=0"
    assert labels(full, every)[0] == "z=0, recompute=full"


def test_the_best_of_a_second_sweep_is_among_the_bars_too() -> None:
    first, second = (sweep(*(row(n, 1.0 + n) for n in range(30))) for _ in range(2))
    found = first + second
    best = [finding.best for finding in found.findings]
    bars = drawn(found)
    assert len(bars) == MOST_BARS
    assert [bar for bar in bars if any(bar is each for each in best)] == best


def test_rungs_of_a_scaling_study_stay_in_their_order() -> None:
    found = rungs("weak", {1: 8, 2: 16, 4: 32})
    assert [bar.devices for bar in ranked(found)] == [1, 2, 4]


def rungs(kind: str, batches: dict[int, int], **changes: Any) -> Answers:
    """A scaling study of so large a batch on so many devices; without a kind, just a sweep."""
    rows = []
    for devices, batch in batches.items():
        prediction = {**PLAIN, "devices": devices, "plan": {**PLAIN["plan"], "batch": batch}}
        rows.append({"point": {"devices": devices, "batch": batch},
                     "prediction": {**prediction, **changes},
                     "scaling": {"kind": kind, "efficiency": 1.0} if kind else None})  # fmt: skip
    return sweep(*rows, title=f"{kind} study")


STRONG, WEAK = {16: 32, 32: 32}, {16: 32, 32: 64}


def test_a_weak_and_a_strong_study_are_two_lines_in_each_figure() -> None:
    ladders = ladders_of(rungs("strong", STRONG) + rungs("weak", WEAK))
    lines = scaling_lines(ladders)
    assert {name: [at.batch for at in line] for name, line in lines.items()} == {
        "strong scaling": [32, 32],
        "weak scaling": [32, 64],
    }
    _, share = scaling(lines).axes
    (kept,) = efficiency(ladders).axes
    assert share.get_legend_handles_labels()[1] == list(lines)
    assert kept.get_legend_handles_labels()[1] == [*lines, "80 %"]


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (rungs("weak", WEAK), [("tiny-1m", "frontier", "weak")]),
        (rungs("weak", WEAK) + rungs("", STRONG), [("weak",), ("other",)]),
        (rungs("", STRONG) + rungs("", {16: 64, 32: 64}), [("batch=32",), ("batch=64",)]),
        (rungs("", WEAK), [("tiny-1m", "frontier")]),
        (
            rungs("weak", WEAK) + rungs("weak", {16: 8, 32: 16}),
            [("batch=32", "64"), ("batch=8", "16")],
        ),
        (rungs("weak", WEAK) + rungs("weak", WEAK), [("tiny-1m", "weak"), ("tiny-1m", "(2)")]),
        (
            rungs("weak", WEAK) + rungs("weak", WEAK, model="tiny-2m"),
            [("tiny-1m", "frontier"), ("tiny-2m", "frontier")],
        ),
    ],
)
def test_a_line_is_named_by_what_tells_it_from_the_rest(
    found: Answers, named: list[tuple[str, ...]]
) -> None:
    for label, words in zip(ladders_of(found), named, strict=True):
        assert_names(label, *words)


@pytest.mark.parametrize(
    ("answers", "is_named", "kinds"),
    [
        (rungs("weak", WEAK) + rungs("strong", STRONG), True, {"rungs"}),
        (rungs("weak", WEAK), False, {"rungs"}),
        (rungs("", WEAK), False, {"fastest"}),
        (rungs("weak", WEAK) + rungs("", STRONG), True, {"rungs", "fastest"}),
    ],
)
def test_the_caption_says_what_the_lines_are(
    answers: Answers, is_named: bool, kinds: set[str], tmp_path: Path
) -> None:
    """The model and the machine, where lines are not named by them; and rungs or fastest plans."""
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page_of(tmp_path, answers))
    (said,) = (each for each in captions if "rungs" in each or "fastest" in each)
    assert {kind for kind in ("rungs", "fastest") if kind in said} == kinds
    assert ("tiny-1m" in said) == ("frontier" in said) == is_named


@pytest.mark.parametrize("machine", ["frontier", "frontier:rccl-rendezvous"])
def test_a_machine_has_one_name_with_and_without_the_variant_that_it_has_anyway(
    machine: str, tmp_path: Path
) -> None:
    """As `simgpt why` names it in full, and `simgpt predict` by its name."""
    paths = [
        written(tmp_path, "a.json", answer(devices=16)),
        written(tmp_path, "b.json", answer(devices=32, machine=machine)),
    ]
    found = read_answers(paths)
    assert {each.machine for each in found.predictions} == {"frontier"}
    assert list(ladders_of(found)) == ["tiny-1m on frontier"]
    assert f"-m {machine} " in ASKING.command_of(found.predictions[1].asked)
    (other,) = read_answers(
        [written(tmp_path, "c.json", answer(machine="frontier:rccl-default"))]
    ).predictions
    assert other.machine == "frontier:rccl-default"
