"""`--routing`: a measured histogram of experts, in every command that predicts a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simgpt import tables
from tests.messages import assert_names
from tests.simgpt.face import Said, simgpt

STEP = ("tiny-mixtral-2m", "-m", "dgx-h100", "-n", "4", "--batch", "16", "--stack", "simgpt")
PLAN = ("--plan", "ep=4,dp=rest")


@pytest.fixture
def uneven(tmp_path: Path) -> str:
    path = tmp_path / "uneven.toml"
    path.write_text("tokens = [4, 2, 1, 1]\n", encoding="utf-8")
    return str(path)


def answer(said: Said) -> dict[str, Any]:
    assert said.status == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def words_of(said: Said) -> str:
    assert said.status == 0, said.err
    return " ".join(said.out.split())


def test_a_prediction_says_the_skew_beside_the_balanced_step(uneven: str) -> None:
    even = answer(simgpt("predict", *STEP, *PLAN, "--json"))
    found = answer(simgpt("predict", *STEP, *PLAN, "--routing", uneven, "--json"))
    assert found["routing"]["most_over_mean"] == 2.0
    assert found["routing"]["balanced_step_s"] == even["step_s"] < found["step_s"]
    assert found["asked"]["routing"] == uneven
    assert uneven in found["asked"]["files"]
    text = words_of(simgpt("predict", *STEP, *PLAN, "--routing", uneven))
    assert text.count("2.00") == 2  # most rows of a rank over the mean, at most and on average
    assert_names(text, tables.seconds(even["step_s"]))
    assert "25.0 %, 25.0 %" not in text
    places = ("--model-set", "capacity=1.0")
    text = words_of(simgpt("predict", *STEP, *PLAN, *places, "--routing", uneven))
    assert_names(text, "25.0 %, 25.0 %")  # of a layer's choices dropped, on average and at most


@pytest.mark.parametrize("capacity", [0.5, 1.0])
def test_a_capacity_below_one_is_said_to_drop(capacity: float) -> None:
    asked = ("predict", *STEP, *PLAN, "--model-set", f"capacity={capacity}")
    text = words_of(simgpt(*asked))
    assert ("50.0 %" in text) == (capacity == 0.5)
    assert answer(simgpt(*asked, "--json")).get("dropped", 0.0) == 1 - capacity


def test_a_sweep_has_the_same_step_and_may_compare_files(uneven: str, tmp_path: Path) -> None:
    even = tmp_path / "even.json"
    even.write_text('{"tokens": [1, 1, 1, 1]}', encoding="utf-8")
    alone = answer(simgpt("predict", *STEP, *PLAN, "--routing", uneven, "--json"))
    swept = simgpt("predict", *STEP, *PLAN, "--sweep", f"routing={uneven},{even}", "--json")
    steps = {row["point"]["routing"]: row["prediction"] for row in answer(swept)["rows"]}
    assert steps[uneven]["step_s"] == alone["step_s"]
    assert steps[str(even)]["step_s"] == alone["routing"]["balanced_step_s"]
    (tmp_path / "study.toml").write_text(
        'model = "tiny-mixtral-2m"\nmachine = "dgx-h100"\ndevices = 4\nbatch = 16\n'
        'plan = "ep=4,dp=rest"\nrouting = "uneven.toml"\nstack = "simgpt"\n',
        encoding="utf-8",
    )
    folder = tmp_path / "rows"
    rows = answer(simgpt("sweep", str(tmp_path / "study.toml"), "-o", str(folder), "--json"))
    assert rows["rows"][0]["prediction"]["step_s"] == alone["step_s"]


@pytest.mark.slow
@pytest.mark.usefixtures("figures_left_out", "few_numbers")
def test_why_and_a_report_go_by_it_too(uneven: str, tmp_path: Path) -> None:
    alone = answer(simgpt("predict", *STEP, *PLAN, "--routing", uneven, "--json"))
    found = answer(simgpt("why", *STEP, *PLAN, "--routing", uneven, "--json"))
    assert found["step_s"] == alone["step_s"]
    saving = 1 - alone["routing"]["balanced_step_s"] / alone["step_s"]
    assert_names(found["why"]["sentence"], f"{100 * saving:.0f} %")
    kept, page = tmp_path / "predict.json", tmp_path / "page.html"
    kept.write_text(json.dumps(alone), encoding="utf-8")
    said = simgpt("report", str(kept), "-o", str(page))
    assert said.status == 0, said.err
    assert f"--routing {uneven}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tokens = [0, 0, 0, 0]", "tokens"),
        ("tokens = [1, 2]", "tokens 2 tiny-mixtral-2m 4"),
        ("tokens = [1, 1, 1, -1]", "tokens 3 -1"),
        ("[layers]\n9 = [1, 1, 1, 1]", "tiny-mixtral-2m 9 3"),
        ("tokens = [1", "TOML"),
    ],
)
def test_a_file_that_is_no_histogram_is_refused(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text, encoding="utf-8")
    said = simgpt("predict", *STEP, *PLAN, "--routing", str(path))
    assert said.status == 2
    assert_names(said.sentence, "wrong.toml", *named.split())


def test_what_knows_no_uneven_experts_refuses_them_by_name(uneven: str) -> None:
    for model, *more in (
        ("gpt-5b",),
        (STEP[0], "--model-set", "expert_every=5"),  # of four layers
    ):
        said = simgpt("predict", model, *STEP[1:], *more, "--routing", uneven)
        assert said.status == 2
        assert_names(said.sentence, uneven, model)
    said = simgpt("predict", *STEP, "--routing", "absent.json")
    assert said.status == 2
    assert_names(said.sentence, "absent.json")
    said = simgpt("predict", *STEP, *PLAN, "--routing", uneven, "--compute", "measured")
    assert said.status == 2
    assert_names(said.err, "compute=measured", "routing")


FEW = "pp=1,zero=1,tp=1,y=1,z=1,overlap=dp,recompute=none,order=tp-dp-pp,mbs=1"


@pytest.mark.slow
def test_a_search_and_a_study_of_best_plans_go_by_it_too(uneven: str, tmp_path: Path) -> None:
    """The step of the plan found is that of its own prediction."""
    found = answer(simgpt("search", *STEP, "--plan", FEW, "--routing", uneven, "--json"))
    plan = found["plans"][0]
    asked = ("--plan", plan["plan_string"], "--routing", uneven, "--json")
    again = answer(simgpt("predict", *STEP, *asked))
    assert (found["optimal"], plan["step_s"]) == (True, again["step_s"])
    assert plan["routing"] == again["routing"]
    assert uneven in found["asked"]["files"]
    text = words_of(simgpt("search", *STEP, "--plan", FEW, "--routing", uneven))
    assert "--routing FILE" not in text
    (tmp_path / "study.toml").write_text(
        'model = "tiny-mixtral-2m"\nmachine = "dgx-h100"\ndevices = 4\nbatch = 16\n'
        f'plan = "best"\nrouting = "uneven.toml"\nstack = "simgpt"\n\n[set]\n{_fixed(FEW)}',
        encoding="utf-8",
    )
    folder = tmp_path / "rows"
    rows = answer(simgpt("sweep", str(tmp_path / "study.toml"), "-o", str(folder), "--json"))
    assert rows["rows"][0]["prediction"]["step_s"] == plan["step_s"]


def _fixed(plan: str) -> str:
    """The keys of a study that all plans have."""
    pairs = (field.split("=") for field in plan.split(","))
    values = {key: value if value.isdigit() else f'"{value}"' for key, value in pairs}
    return "".join(f"{key} = {value}\n" for key, value in values.items())


EVENLY = "--routing FILE"  # which gives a measured histogram


@pytest.mark.usefixtures("figures_left_out", "few_numbers")
def test_that_experts_are_taken_to_be_used_evenly_is_said_once_where_nothing_else_is_known(
    uneven: str, tmp_path: Path
) -> None:
    fixed = f"{FEW},ep=4"
    asked = [
        ("predict", *STEP, *PLAN),
        ("why", *STEP, *PLAN),
        ("predict", *STEP, *PLAN, "--sweep", "zero=0,1"),
        ("search", *STEP, "--plan", fixed, "--workers", "1"),
    ]
    for words in asked:
        assert words_of(simgpt(*words)).count(EVENLY) == 1, words
        assert EVENLY not in words_of(simgpt(*words, "--routing", uneven)), words
    assert EVENLY not in simgpt("predict", "tiny-1m", *STEP[1:], "--plan", "dp=rest").out
    path, page = tmp_path / "a.json", tmp_path / "a.html"
    assert simgpt(*asked[0], "--json", "-o", str(path)).status == 0
    assert json.loads(path.read_text(encoding="utf-8"))["routing_assumed"] == "balanced"
    assert simgpt("report", str(path), "-o", str(page)).status == 0
    assert page.read_text(encoding="utf-8").count(EVENLY) == 1


def test_the_range_of_a_step_with_experts_is_from_runs_with_experts_of_balanced_routing(
    uneven: str,
) -> None:
    even = answer(simgpt("predict", *STEP, *PLAN, "--json"))["range"]["basis"]
    assert_names(even, "experts", "simgpt", "4", "h100")
    found = answer(simgpt("predict", *STEP, *PLAN, "--json", "--routing", uneven))
    assert "routing_assumed" not in found
    assert found["range"]["basis"].startswith(f"{even}; ")
