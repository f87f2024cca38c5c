"""Scaling studies: what stands on each rung, and efficiency from the first one on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpt.question_rows import QuestionError
from simgpt.studies.inputs import inputs_of
from simgpt.studies.journal import RESULTS, rows_in
from simgpt.studies.scaling import with_efficiency, with_published
from simgpt.studies.study_table import describe
from simgpt.studies.sweep_rows import SweepResources, sweep_into
from tests.messages import names
from tests.simgpt.studies.worlds import study

BASE = {"model": "tiny-1m", "machine": "frontier", "batch": 16, "plan": "dp=rest"}
LADDER = [["tiny-1m", 8, 16], ["tiny-2m", 16, 32], ["tiny-10m", 32, 64]]


def rows(scaling: dict[str, Any], folder: Path, **more: Any) -> list[dict[str, Any]]:
    asked = study(BASE, scaling=scaling, **more)
    sweep_into(folder, asked, inputs_of(asked), SweepResources(), lambda _: None)
    return list(rows_in(folder))


def keys(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row["point"].get(key) for key in ("model", "devices", "batch"))


def test_strong_scaling_keeps_the_batch(tmp_path: Path) -> None:
    found = rows({"kind": "strong", "devices": [4, 8, 16]}, tmp_path)
    assert [keys(row) for row in found] == [("tiny-1m", n, 16) for n in (4, 8, 16)]
    rates = [row["prediction"]["tokens_per_s"] / row["prediction"]["devices"] for row in found]
    assert [row["scaling"]["tokens_per_s_per_device"] for row in found] == rates
    efficiencies = [row["scaling"]["efficiency"] for row in found]
    assert efficiencies == pytest.approx([rate / rates[0] for rate in rates])
    assert efficiencies[0] == 1 > efficiencies[1] > efficiencies[2] > 0


def test_weak_scaling_grows_the_batch_with_the_devices(tmp_path: Path) -> None:
    found = rows({"kind": "weak", "devices": [4, 8, 16]}, tmp_path)
    assert [keys(row) for row in found] == [("tiny-1m", n, 4 * n) for n in (4, 8, 16)]
    steps = [row["prediction"]["step_s"] for row in found]
    assert [row["scaling"]["efficiency"] for row in found] == pytest.approx(
        [steps[0] / step for step in steps]
    )


def test_a_ladder_says_what_grows_and_flops_are_what_compares(tmp_path: Path) -> None:
    found = rows({"kind": "weak", "ladder": LADDER}, tmp_path)
    assert [keys(row) for row in found] == [tuple(rung) for rung in LADDER]
    rates = [row["prediction"]["model_flops_per_s_per_device"] for row in found]
    assert [row["scaling"]["efficiency"] for row in found] == pytest.approx(
        [rate / rates[0] for rate in rates]
    )


def test_a_ladder_may_give_each_rung_its_plan(tmp_path: Path) -> None:
    ladder = [[*LADDER[0], "tp=2,dp=rest"], [*LADDER[1], "z=4,dp=rest"]]
    found = rows({"kind": "weak", "ladder": ladder}, tmp_path)
    assert [row["prediction"]["plan"]["tp"] for row in found] == [2, 1]
    assert [row["prediction"]["plan"]["z"] for row in found] == [1, 4]


def test_a_plan_of_the_scaling_stands_over_that_of_the_study(tmp_path: Path) -> None:
    found = rows({"kind": "strong", "devices": [4, 8], "plan": "z=4,dp=rest"}, tmp_path)
    assert [row["prediction"]["plan"]["z"] for row in found] == [4, 4]


def test_each_rung_may_have_its_own_best_plan(tmp_path: Path) -> None:
    kept = {"pp": 1, "zero": 0, "recompute": "none", "overlap": "all"}
    fixed = rows({"kind": "strong", "devices": [2, 4]}, tmp_path / "fixed", set=kept)
    best = rows({"kind": "strong", "devices": [2, 4], "plan": "best"}, tmp_path / "best", set=kept)
    for ours, theirs in zip(best, fixed, strict=True):
        assert ours["prediction"]["step_s"] <= theirs["prediction"]["step_s"]
    assert best[0]["scaling"]["efficiency"] == 1


def test_each_swept_value_has_its_own_ladder_and_first_rung(tmp_path: Path) -> None:
    found = rows({"kind": "strong", "devices": [4, 8]}, tmp_path, sweep={"z": [1, 2]})
    assert [(r["point"]["plan.z"], r["point"]["devices"]) for r in found] == [
        (1, 4),
        (1, 8),
        (2, 4),
        (2, 8),
    ]
    assert [row["scaling"]["efficiency"] == 1 for row in found] == [True, False, True, False]


def test_a_rung_that_cannot_run_has_no_efficiency_nor_has_any_after_a_first_one(
    tmp_path: Path,
) -> None:
    found = rows({"kind": "strong", "devices": [8, 12, 16]}, tmp_path / "middle")
    assert [row["scaling"]["efficiency"] is None for row in found] == [False, True, False]
    found = rows({"kind": "strong", "devices": [12, 16]}, tmp_path / "first")
    assert [row["scaling"]["efficiency"] for row in found] == [None, None]
    assert found[1]["scaling"]["tokens_per_s_per_device"] > 0


@pytest.mark.parametrize("kept", range(6))
def test_efficiency_is_the_same_after_an_interruption(kept: int, tmp_path: Path) -> None:
    asked = study(BASE, scaling={"kind": "strong", "devices": [4, 8, 16]}, sweep={"z": [1, 2]})
    inputs = inputs_of(asked)
    sweep_into(tmp_path, asked, inputs, SweepResources(), lambda _: None)
    whole = (tmp_path / RESULTS).read_bytes()
    (tmp_path / RESULTS).write_bytes(b"".join(whole.splitlines(keepends=True)[:kept]))
    sweep_into(tmp_path, asked, inputs, SweepResources(), lambda _: None)
    assert (tmp_path / RESULTS).read_bytes() == whole


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"devices": [4]}, ["scaling.kind", "weak", "strong"]),
        ({"kind": "string", "devices": [4]}, ["scaling.kind", "string"]),
        ({"kind": "weak"}, ["devices", "ladder"]),
        ({"kind": "weak", "devices": [4], "ladder": LADDER}, ["devices", "ladder"]),
        ({"kind": "strong", "ladder": LADDER}, ["scaling.ladder", "weak"]),
        ({"kind": "strong", "devices": []}, ["scaling.devices", "[]"]),
        ({"kind": "strong", "devices": 4}, ["scaling.devices", "4"]),
        ({"kind": "strong", "devices": [0]}, ["devices", "0"]),
        ({"kind": "weak", "devices": [3, 4]}, ["batch", "16", "3 devices"]),
        ({"kind": "weak", "ladder": [["tiny-1m", 8]]}, ["[model, devices, batch]"]),
        ({"kind": "weak", "ladder": [[8, "tiny-1m", 8]]}, ["model", "8"]),
        ({"kind": "weak", "ladder": [LADDER[0], [*LADDER[1], "z=2"]]}, ["plan"]),
        ({"kind": "strong", "devices": [4], "machines": 1}, ["scaling.machines"]),
    ],
)
def test_a_scaling_that_nobody_can_mean(scaling: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(QuestionError, check=names(*named)):
        study(BASE, scaling=scaling)


def test_published_steps_stand_beside_the_rungs_that_have_one(tmp_path: Path) -> None:
    ladder = [["gpt-5b", 512, 8192, "z=4,dp=rest,mbs=4,recompute=full"],
              ["tiny-1m", 8, 16, "dp=rest"]]  # fmt: skip
    asked = study({"machine": "frontier"}, scaling={"kind": "weak", "ladder": ladder})
    sweep_into(tmp_path, asked, inputs_of(asked), SweepResources(), lambda _: None)
    found = [with_published(row) for row in rows_in(tmp_path)]
    assert found[0]["published"]["hfu"] == 0.411
    step_s = found[0]["prediction"]["step_s"]
    ratio = 1 + found[0]["published"]["error"]
    assert found[0]["published"]["step_s"] == pytest.approx(step_s / ratio)
    assert found[1]["published"] is None
    said = describe(asked, found, 10, "study")
    assert "published     error" in said
    assert f"{found[0]['published']['step_s']:.1f} s" in said
    (other,) = [line for line in said.splitlines() if "tiny-1m" in line]
    assert other.split().count("-") >= 2


def test_weak_scaling_without_a_batch_or_with_swept_devices_is_refused() -> None:
    bare = {key: value for key, value in BASE.items() if key != "batch"}
    with pytest.raises(QuestionError, check=names("batch")):
        study(bare, scaling={"kind": "weak", "devices": [4, 8]})
    with pytest.raises(QuestionError, check=names("devices")):
        study(BASE, scaling={"kind": "strong", "devices": [4]}, sweep={"devices": [4, 8]})


@pytest.mark.parametrize(
    ("status", "first", "efficiency"),
    [("ok", "ok", 0.5), ("infeasible", "ok", None), ("ok", "infeasible", None)],
)
def test_a_rung_that_does_not_fit_has_no_efficiency_and_is_that_of_none(
    status: str, first: str, efficiency: float | None
) -> None:
    """Half the rate of the first rung, whichever of the two does not fit."""
    rates = {"tokens_per_s": 8.0, "devices": 4}
    row = {"status": status, "prediction": {**rates, "model_flops_per_s_per_device": 1.0}}
    base = {"status": first, "prediction": {**rates, "model_flops_per_s_per_device": 2.0}}
    with_efficiency(row, base, "weak")
    assert row["scaling"] == {
        **{"kind": "weak", "tokens_per_s_per_device": 2.0, "efficiency": efficiency}
    }


def test_a_published_step_is_found_by_the_batch_of_the_plan() -> None:
    """As of a point whose batch is in tokens."""
    point = {"model": "gpt-5b", "machine": "frontier", "devices": 512, "batch_tokens": 2**24}
    prediction = {"plan": {"batch": 8192}, "step_s": 1.0}
    assert with_published({"point": point, "prediction": prediction})["published"]
    prediction["plan"] = {"batch": 4096}
    assert not with_published({"point": point, "prediction": prediction})["published"]
