"""The report's first answer: which is best, how sure that is, and how far a study scales."""

from __future__ import annotations

from typing import Any

import pytest

from tests.messages import assert_names
from tests.validation.test_report import answer
from validation.report.answers import Answers, Pair, answers_in
from validation.report.figures.efficiency import reach_of
from validation.report.findings import Finding, Ladder, best_of
from validation.report.headline import headline
from validation.report.read_prediction import Answer, prediction_of
from validation.report.whole_run.calendar import calendar_of
from validation.report.words import hours

RECORD = answer()
RATE = "model_flops_per_s_per_device"


def made(**changes: Any) -> Answer:
    return prediction_of({**RECORD, **changes}, "tp")


def too_large(**changes: Any) -> Answer:
    memory = {**RECORD["memory"], "peak_bytes": 2**50, "verdict": "does not fit"}
    return made(**changes, memory=memory)


def test_the_best_is_of_most_flops_per_device_and_not_of_the_largest_job() -> None:
    """2 GFLOP/s on each of 32 devices are 64 in all, and 1.5 on each of 64 are 96."""
    small, large = made(devices=32, **{RATE: 2e9}), made(devices=64, **{RATE: 1.5e9})
    assert large.flops_per_s > small.flops_per_s
    assert best_of([large, small], "throughput") is small


def test_the_best_of_each_measure_is_the_least_of_it_that_fits() -> None:
    cost = RECORD["cost"]
    one = made(step_s=1.0, cost={**cost, "node_s_per_step": 9.0, "energy_j_per_step": 5.0})
    two = made(step_s=2.0, cost={**cost, "node_s_per_step": 8.0, "energy_j_per_step": None})
    none = too_large(step_s=0.1, cost={**cost, "node_s_per_step": 0.1, "energy_j_per_step": 0.1})
    found = {m: best_of([none, one, two], m) for m in ("time", "node-hours", "energy", "memory")}
    assert found == {"time": one, "node-hours": two, "energy": one, "memory": one}
    assert best_of([none], "time") is None


def searched(best: Answer | None, gap: float | None) -> Answers:
    finding = Finding("time", best, [best] if best else [], proof=("9 legal plans.", gap))
    return Answers(findings=[finding])


@pytest.mark.parametrize("gap", [0.0, 0.25, None])
def test_only_a_gap_of_nothing_is_a_proof(gap: float | None) -> None:
    said = headline(searched(made(), gap), {}).sentence
    assert ("optimal" in said) == (gap is not None)
    assert ("25.0 %" in said) == ("%" in said) == bool(gap)


@pytest.mark.parametrize("gap", [0.0, 0.5, None])
def test_that_nothing_fits_is_said_of_a_search_that_looked_everywhere(gap: float | None) -> None:
    assert ("fits" in headline(searched(None, gap), {}).answer) == (gap == 0.0)


def test_the_mean_error_is_one_in_which_signs_do_not_cancel() -> None:
    pairs = [Pair("tp", "step", "", 1.0, predicted) for predicted in (1.5, 0.5, None)]
    head = headline(Answers(pairs=pairs), {})
    assert_names(head.question, "3")
    assert_names(head.answer, "50.0 %")


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        ("node-hours", "2.00 node-hours"),
        ("energy", "150 kJ"),
        ("memory", "3 GiB"),
        ("time", "1.50 s"),
        ("throughput", "2 GFLOP/s per device"),
    ],
)
def test_the_answer_is_what_the_best_is_best_in(measure: str, words: str) -> None:
    best = made(
        step_s=1.5,
        cost={**RECORD["cost"], "node_s_per_step": 7200.0, "energy_j_per_step": 1.5e5},
        memory={**RECORD["memory"], "peak_bytes": 3 * 2**30},
        **{RATE: 2e9},
    )
    finding = Finding(measure, best, [best, made()])
    assert headline(Answers(findings=[finding]), {}).answer == words


def test_an_hour_has_3600_seconds() -> None:
    assert [hours(seconds) for seconds in (3600, 84.1, 36e6)] == ["1.00", "0.0234", "10,000"]


def ladder(**efficiencies: float) -> Ladder:
    rungs = [
        made(devices=int(name[1:]), scaling={"efficiency": value})
        for name, value in efficiencies.items()
    ]
    return Ladder({"z": len(rungs)}, "weak", rungs)


def test_of_several_ladders_the_one_that_scales_furthest_is_the_answer() -> None:
    short, long = ladder(n1=1.0, n8=0.7), ladder(n1=1.0, n2=0.9, n4=0.8, n8=0.79)
    reach = reach_of([short, long])
    assert reach is not None
    assert (reach.ladder, reach.last.devices) == (long, 4)
    assert reach.beyond is not None
    assert reach.beyond.devices == 8


def test_a_rung_that_does_not_fit_is_not_reached() -> None:
    rungs = ladder(n1=1.0, n2=0.9).rungs
    beyond = too_large(devices=4, scaling={"efficiency": 0.95})
    reach = reach_of([Ladder({}, "weak", [*rungs, beyond])])
    assert reach is not None
    assert (reach.last.devices, reach.beyond) == (2, None)


def whole_run(calendar: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of `simgpt plan-run`."""
    ends = {"low_end": "2026-03-01", "end": "2026-04-01", "high_end": "2026-06-01"}
    about = {"model": "gpt-5b", "machine": "frontier", "nodes": 64, "start": "2026-01-01"}
    spent = {"effective_share": 0.9, "expected_s": 7.8e6, "shares": {"training": 0.9}}
    return {**about, **ends, **spent, "interval": {"interval_s": 3600.0}, "calendar": calendar}


def test_a_whole_run_ends_in_the_middle_of_its_range() -> None:
    said = headline(answers_in(whole_run(), "run.json"), {})
    assert said.answer == "2026-04-01"
    assert_names(said.sentence, "2026-03-01", "2026-06-01")


def test_the_life_of_a_run_is_read_in_pairs() -> None:
    life = {"progress": [[0, 0], [50, 0.25], [90, 1]], "jobs_s": [[0, 60], [70, 100]]}
    found = calendar_of(whole_run({**life, "failures_s": [65], "failures": 1, "saves": 2}), "run")
    assert found.progress == [(0, 0), (50, 0.25), (90, 1)]
    assert found.jobs_s == [(0, 60), (70, 100)]
