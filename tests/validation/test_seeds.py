"""The table of the two papers: its rule for plans and its ranges, worked out by hand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from simulator.predict import Prediction, predict
from simulator.stacks import load_stack
from tests.messages import names
from topologies.files.reading import shipped_toml
from topologies.machine_files import load_machine
from validation.published.predicting import predict_runs
from validation.published.runs import read_runs
from validation.seeds import candidates, table, validate_seeds
from validation.seeds.candidates import Candidates, SeedRun, SeedRuns, _predicted, seed_runs
from validation.seeds.figures import OF_ONE, OF_TWO, of_one, of_two, range_of_software
from validation.seeds.table import SeedsError
from validation.weak_scaling import ladders
from workload.errors import PlanCannotRunError
from workload.gpt import find_model
from workload.plan_text import parse_plan

DATA: dict[str, Any] = shipped_toml("validation", "data/seeds.toml")
STEP = predict(find_model("tiny-1m"), parse_plan("dp=8", batch=64), load_machine("frontier"))


def taking(*steps_s: float) -> tuple[Prediction, ...]:
    """Predictions of the same plan whose steps take so long, half of it in compute."""
    return tuple(
        replace(
            STEP,
            step_s=step_s,
            breakdown_s={"compute": step_s / 2, "dp": step_s / 2},
            hardware_flops_per_s_per_device=1e12 / step_s,
        )
        for step_s in steps_s
    )


def test_the_fastest_candidate_is_predicted_and_ranges_hold_all_where_nobody_chose() -> None:
    run = Candidates(taking(4.0, 2.0, 8.0), chosen=False)
    found = of_one("compute", run)
    assert (found.predicted, found.low, found.high) == (1.0, 1.0, 4.0)


def test_where_the_authors_measured_only_what_cannot_be_told_from_the_fastest_is_possible() -> None:
    share = STEP.difference_error.share
    steps = (2.0, 2.0 * (1 + share) * 0.999, 2.0 * (1 + share) * 1.001)
    possible = Candidates(taking(*steps), chosen=True).possible
    assert [each.step_s for each in possible] == [*steps[:2]]


def of_stack(stack: str) -> Prediction:
    """A step of 2 s with a stack of that name."""
    return replace(taking(2.0)[0], stack=load_stack(stack))


def test_a_figure_that_follows_from_the_step_has_its_range_from_runs_of_the_same_software() -> None:
    step = of_stack("megatron-core")
    within, found = range_of_software(step), of_one("days", Candidates((step,), chosen=False))
    assert within is not None
    assert found.low is not None
    assert found.high is not None
    per_second = found.predicted / 2.0
    assert found.low == pytest.approx(within.low_s * per_second)
    assert found.high == pytest.approx(within.high_s * per_second)
    rate = of_one("hfu", Candidates((step,), chosen=False))
    assert rate.low == pytest.approx(rate.predicted * 2.0 / within.high_s)


def test_there_is_no_range_where_no_run_of_the_same_software_was_published() -> None:
    """Two steps of AxoNN's are known: ranges of others' software say nothing of it."""
    step = of_stack("axonn")
    assert range_of_software(step) is None
    found = of_one("hfu", Candidates((step,), chosen=False))
    assert (found.low, found.high) == (None, None)


def test_every_rung_of_the_ladder_has_a_row_and_those_without_a_figure_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {row["run"]: row for row in DATA["figure"][0]["rows"]}
    rungs = [name for names in ladders().values() for name in names]
    assert set(rungs) <= set(rows)
    unknown = {run for run, row in rows.items() if "published" not in row}
    assert unknown == {run for run in unknown if rows[run]["certainty"] == "none"}
    assert unknown
    quick = {"perlmutter-512": Candidates(taking(2.0), chosen=False)}
    monkeypatch.setattr(table, "SeedRuns", lambda _: quick)
    (row,) = validate_seeds(["axonn-weak-perlmutter-512"])
    assert (row.published, row.error, row.within) == (None, None, None)
    assert row.predicted > 0


def test_candidates_with_changed_words_are_compared_one_by_one_with_their_own() -> None:
    """The fastest plan takes 2 s of 4 s, the other 3 s of 3 s: 50 %, and never 2 s of 3 s."""
    run = Candidates(taking(3.0, 2.0), chosen=False)
    base = Candidates(taking(3.0, 4.0), chosen=False)
    assert of_two("saving", run, base, paired=True).predicted == pytest.approx(50.0)
    other = of_two("saving", run, base, paired=False)
    assert other.predicted == pytest.approx(100 / 3)
    assert other.low is not None
    assert other.high is not None
    assert other.low <= 0.0 < 50.0 <= other.high


def test_a_ratio_of_two_steps_has_the_error_of_a_difference() -> None:
    one, two = Candidates(taking(2.0), chosen=True), Candidates(taking(1.0), chosen=True)
    found, share = of_two("efficiency", one, two, paired=False), STEP.difference_error.share
    assert found.predicted == pytest.approx(50.0)
    assert (found.low, found.high) == pytest.approx((50 / (1 + share), 50 * (1 + share)))
    saved = of_two("saving", two, one, paired=False)
    halves = 50 * (1 + share), 50 / (1 + share)
    assert (saved.low, saved.high) == pytest.approx((100 - halves[0], 100 - halves[1]))


def test_combinations_that_are_no_plan_or_do_not_fit_are_no_candidates() -> None:
    """Of tp=1, 2 and 3 the last divides no 8 devices."""
    run = SeedRun(
        id="small", model="tiny-1m", machine="frontier", devices=8, batch=64,
        stack="megatron-deepspeed", candidates={"tp": [1, 2, 3]},
    )  # fmt: skip
    found = _predicted(run)
    assert [each.plan.tp for each in found.predictions] == [1, 2]
    assert (found.chosen, found.best.plan.batch) == (False, 64)
    with pytest.raises(PlanCannotRunError, check=names("small")):
        _predicted(replace(run, candidates={"tp": [3]}))
    # A row of 128 tokens keeps above a MiB: 2^18 at once are more than the 64 GiB that there are.
    large = replace(run, batch=8 * 2**18, candidates={"mbs": [2**18, 2**14]})
    assert [each.plan.mbs for each in _predicted(large).predictions] == [2**14]


def test_grids_are_the_first_of_axonn_s_model_under_the_run_s_stack() -> None:
    run = SeedRun(id="small", model="tiny-1m", machine="frontier", devices=8, batch=64, grids=3)
    found = _predicted(run)
    assert len(found.predictions) == 3
    assert found.chosen
    assert {each.stack.name for each in found.predictions} == {"axonn"}
    assert {each.plan.training.recompute for each in found.predictions} == {"full"}


def test_every_figure_is_of_a_known_kind_and_of_runs_that_are_stated() -> None:
    runs = seed_runs()
    for figure in DATA["figure"]:
        assert {*OF_ONE, *OF_TWO, "top-ten", "traced", "groups"} >= {figure["kind"]}
        for row in figure["rows"]:
            known = ("read", "quoted", "derived", "memory") if "published" in row else ("none",)
            if figure["kind"] not in ("traced", "groups"):
                assert row["certainty"] in known
            if figure["kind"] in (*OF_ONE, *OF_TWO):
                assert row["run"] in runs
                assert row.get("base", row["run"]) in runs
    assert all(run.of in runs for run in runs.values() if run.of)


def test_rows_are_chosen_by_words_of_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Candidates(taking(2.0), chosen=False)
    monkeypatch.setattr(table, "SeedRuns", lambda _: defaultdict(lambda: quick))
    rows = validate_seeds(["ornl-weak"])
    assert [row.id for row in rows] == ["ornl-weak-175b", "ornl-weak-1t"]
    with pytest.raises(SeedsError, check=names("ornl-9")):
        validate_seeds(["ornl-9"])


def test_a_row_in_json_has_the_plan_and_the_step_that_was_published() -> None:
    (row,) = validate_seeds(["ornl-22b"])
    record = row.as_dict()
    assert row.low is not None
    assert row.high is not None
    assert row.published is not None
    assert record["within"] == (row.low <= row.published <= row.high)
    assert record["devices"] == 16
    assert row.error is not None
    assert abs(row.error) < 0.08
    ratio = record["predicted_s"] / record["measured_s"]
    assert ratio - 1 == pytest.approx(record["error"])
    assert ratio == pytest.approx(row.published / row.predicted)


@pytest.mark.slow
def test_the_three_models_of_ornl_come_out_in_the_published_order_by_the_authors_scripts() -> None:
    """One rule for all three: axes, batch and nodes of the launch scripts, nothing else."""
    rows = {row.id: row for row in validate_seeds(["ornl-22b", "ornl-175b", "ornl-1t"])}
    three = [rows[name] for name in ("ornl-22b", "ornl-175b", "ornl-1t")]
    predicted = [row.predicted for row in three]
    assert predicted == sorted(predicted, reverse=True)
    assert all(row.error is not None and abs(row.error) < 0.08 for row in three)


def test_the_slow_form_of_320b_is_slow_in_plain_forms_alone() -> None:
    """Both predictions are of one plan and differ by the form: 30.1 and 13.2 s are published."""
    rows = {row.id: row for row in validate_seeds(["axonn-compute-320b"])}
    plain, tuned = rows["axonn-compute-320b"], rows["axonn-compute-320b-tuned"]
    assert plain.step is not None
    assert tuned.step is not None
    assert plain.step.plan.changed(matmul_forms="tuned") == tuned.step.plan
    assert plain.predicted > 1.9 * tuned.predicted
    assert plain.predicted == pytest.approx(plain.published, rel=0.1)


@pytest.mark.slow
def test_profiled_runs_are_predicted_as_validate_published_does() -> None:
    rows = {row.id: row for row in validate_seeds(["axonn-20b-perlmutter"])}
    (outcome,) = predict_runs([run for run in read_runs() if run.id == "axonn-007"], print)
    assert rows["axonn-20b-perlmutter-step"].predicted == outcome.predicted_s
    assert rows["axonn-20b-perlmutter-z"].published == 4.06
    compute = rows["axonn-20b-perlmutter-compute"]
    assert compute.predicted == pytest.approx(compute.published, rel=0.1)


def test_a_run_made_from_another_has_its_best_with_another_batch_or_all_with_other_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small: dict[str, Any] = {"model": "tiny-1m", "machine": "frontier", "devices": 8, "batch": 64}
    runs = [
        SeedRun(id="base", **small, stack="megatron-deepspeed", candidates={"tp": [2, 1]}),
        SeedRun(id="strong", **small, of="base", change={"batch": 128}),
        SeedRun(id="again", **small, of="base", change={"recompute": "full"}),
    ]
    monkeypatch.setattr(candidates, "seed_runs", lambda: {run.id: run for run in runs})
    found = SeedRuns()
    base, strong, again = (found[run.id] for run in runs)
    assert [each.plan.tp for each in base.predictions] == [2, base.best.plan.tp] == [2, 1]
    assert strong.best.plan == replace(base.best.plan, batch=128)
    assert len(strong.predictions) == 1
    assert not strong.chosen
    plans = [each.plan.changed(recompute="full") for each in base.predictions]
    assert [each.plan for each in again.predictions] == plans
    assert again.best.step_s > base.best.step_s
    assert {each.stack.name for each in again.predictions} == {"megatron-deepspeed"}


@pytest.mark.slow
def test_a_run_made_from_another_has_its_candidates_with_other_words() -> None:
    runs = SeedRuns()
    one, other = runs["ornl-1t-tabled"], runs["ornl-1t-3072-strong"]
    assert other.best.plan == replace(one.best.plan, batch=8016)
