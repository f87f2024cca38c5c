"""`--anchor`: a measured step, kept by `compare --save`, scales the answers of other commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simgpt as api
from tests.messages import assert_names
from tests.simgpt.face import simgpt

ROOT = Path(__file__).resolve().parents[2]
LOG = str(ROOT / "docs/samples/megatron-lm-invented.log")
STEP_S = 3.5999  # median of that log's steps but for the first five
DOCUMENTED = (
    *("llama-3.1-8b", "-m", "8x8xH100,8xNDR", "-n", "64", "--stack", "megatron-core"),
    *("--plan", "tp=2,dp=rest,mbs=1,sp=true", "--batch", "256"),
)
# A step of milliseconds, of which the log says nothing but the batch.
STACK = ("--stack", "megatron-core")
PLAN = ("--plan", "tp=2,dp=rest,mbs=64,sp=true")
QUESTION = ("tiny-2m", "-m", "2x2xH100,2xNDR", "-n", "4", *STACK)
ASKED = (*QUESTION, *PLAN, "--batch", "256")
TWICE = ("tiny-2m", "-m", "4x2xH100,2xNDR")
LARGER = (*TWICE, "-n", "8", *STACK, *PLAN, "--batch", "512")


def answer(*words: str) -> dict[str, Any]:
    """A command's JSON."""
    said = simgpt(*words, "--json")
    assert said.status == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


@pytest.fixture(scope="module")
def anchor(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of the log's anchor."""
    path = tmp_path_factory.mktemp("anchors") / "mine.toml"
    saved = simgpt("compare", LOG, *ASKED, "--save", str(path), "--software", "NeMo 25.02")
    assert saved.status == 0
    return str(path)


def test_the_measured_step_comes_back_for_its_own_question(anchor: str) -> None:
    assert answer("predict", *ASKED, "--anchor", anchor)["step_s"] == pytest.approx(STEP_S)


def test_a_log_of_the_very_question_anchors_it_as_its_saved_file_does(anchor: str) -> None:
    """To the digits that the file has."""
    of_file = answer("predict", *ASKED, "--anchor", anchor)["step_s"]
    assert answer("predict", *ASKED, "--anchor", LOG)["step_s"] == pytest.approx(of_file)


def test_a_log_of_another_question_is_refused() -> None:
    said = simgpt("predict", *LARGER, "--anchor", LOG)
    assert said.status == 2
    assert "--save" in said.sentence


def test_twice_the_devices_take_four_fifths_of_the_difference(anchor: str) -> None:
    blind, alike = answer("predict", *LARGER), answer("predict", *ASKED)
    found = answer("predict", *LARGER, "--anchor", anchor)
    factor = (STEP_S / alike["step_s"]) ** 0.8
    assert found["step_s"] == pytest.approx(blind["step_s"] * factor)
    assert found["anchor"]["factor"] == pytest.approx(factor)
    (used,) = found["anchor"]["used"]
    assert (used["doublings"], used["software"]) == (1.0, "NeMo 25.02")


def test_the_text_says_what_moved_the_step_and_how_far(anchor: str) -> None:
    said = simgpt("predict", *LARGER, "--anchor", anchor).out
    assert_names(said, "mine.toml", "4", "8", "NeMo 25.02")


@pytest.mark.slow
def test_a_search_finds_the_same_plans_and_scales_all_of_them_alike(
    anchor: str, tmp_path: Path
) -> None:
    """By an anchor of a step alone: a measured peak says more of which plans fit."""
    lines = Path(anchor).read_text().splitlines(keepends=True)
    anchor = str(tmp_path / "step.toml")
    Path(anchor).write_text("".join(line for line in lines if not line.startswith("peak")))
    words = (*QUESTION, "--batch", "256", "--plan", "tp=2,pp=1,mbs=64", "--workers", "1")
    blind, found = answer("search", *words), answer("search", *words, "--anchor", anchor)
    plans = [[each["plan_string"] for each in told["plans"]] for told in (blind, found)]
    assert plans[0] == plans[1]
    factors = {
        round(mine["step_s"] / its["step_s"], 12)
        for mine, its in zip(found["plans"], blind["plans"], strict=True)
    }
    assert len(factors) == 1
    best = found["plans"][0]
    again = ("--plan", best["plan_string"], "--batch", "256", "--anchor", anchor)
    assert answer("predict", *QUESTION, *again)["step_s"] == pytest.approx(best["step_s"])


def test_a_searchs_bound_on_other_plans_is_scaled_as_its_plans_are(anchor: str) -> None:
    """A search that came to its end has no plan below the best one, anchored or not."""
    narrow = ("--plan", "tp=1,pp=1,mbs=64,zero=1,recompute=none", "--top", "1", "--workers", "1")
    words = ("search", *QUESTION, "--batch", "256", *narrow)
    blind, found = answer(*words), answer(*words, "--anchor", anchor)
    (its,), (mine,) = blind["plans"], found["plans"]
    assert mine["step_s"] > 10 * its["step_s"]
    assert (blind["bound"], found["bound"]) == (its["step_s"], pytest.approx(mine["step_s"]))


def test_the_best_plan_decides_which_anchor_a_search_takes(tmp_path: Path) -> None:
    """Of two anchors with unlike plans the one nearer to the best plan counts more, whatever other
    plans were simulated before it."""
    other = "tp=4,sp=true,dp=rest,mbs=64"

    files = []
    for plan, step in (("tp=1,dp=rest,mbs=64", "3 s"), (other, "9 s")):
        path = tmp_path / f"{step[0]}.toml"
        head = 'model = "tiny-2m"\nmachine = "2x2xH100,2xNDR"\nstack = "megatron-core"\n'
        sizes = f'devices = 4\nbatch = 256\nplan = "{plan}"\n'
        path.write_text(f'{head}{sizes}[measured]\nstep = "{step}"\n', encoding="utf-8")
        files += ["--anchor", str(path)]
    asked = (*QUESTION, "--batch", "256")
    narrow = ("--plan", "tp=1,pp=1,mbs=64,zero=1", "--top", "1", "--workers", "1")
    words = ("search", *asked, *narrow, *files)
    plain = answer(*words)
    again = ("--plan", plain["plans"][0]["plan_string"], *files)
    told = answer("predict", *asked, *again)["step_s"]
    assert told == pytest.approx(plain["plans"][0]["step_s"])


@pytest.mark.slow
def test_why_scales_times_and_leaves_shares_as_they_are(tmp_path: Path) -> None:
    """One device has few parameters and few neighbouring plans."""
    path = tmp_path / "alone.toml"
    path.write_text(
        'model = "tiny-30k"\nmachine = "host"\ndevices = 1\nbatch = 2\n'
        'plan = "dp=1"\n[measured]\nstep = "3 s"\n',
        encoding="utf-8",
    )
    asked = ("why", "tiny-30k", "-m", "host", "--plan", "dp=1", "--batch", "2")
    blind, found = answer(*asked), answer(*asked, "--anchor", str(path))
    factor = 3.0 / blind["step_s"]
    assert found["step_s"] == pytest.approx(3.0)
    for told, its in zip(found["why"]["path"], blind["why"]["path"], strict=True):
        assert told["seconds"] == pytest.approx(factor * its["seconds"])
        assert told["share"] == pytest.approx(its["share"])
    plans = [
        {p["plan_string"]: p for p in told["why"]["neighbouring_plans"]} for told in (found, blind)
    ]
    assert plans[0]
    for text, each in plans[0].items():
        assert each["step_s"] == pytest.approx(factor * plans[1][text]["step_s"])
        assert each["saving"] == pytest.approx(plans[1][text]["saving"])
    assert found["why"]["sensitivity"] == blind["why"]["sensitivity"]


STUDY = """
model = "tiny-2m"
machine = "2x2xH100,2xNDR"
stack = "megatron-core"
devices = 4
batch = 256
[set]
plan.tp = 2
plan.mbs = 64
plan.sp = true
"""


def test_rows_of_a_sweep_are_scaled_and_a_folder_keeps_one_set_of_anchors(
    anchor: str, tmp_path: Path
) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY, encoding="utf-8")
    folder = ("-o", str(tmp_path / "rows"))
    found = answer("sweep", str(study), *folder, "--anchor", anchor)
    assert found["rows"][0]["prediction"]["step_s"] == pytest.approx(STEP_S)
    refused = simgpt("sweep", str(study), *folder)
    assert refused.status == 2
    assert "anchor" in refused.err


def test_predict_sweeps_with_anchors(anchor: str) -> None:
    found = answer("predict", *QUESTION, *PLAN, "--sweep", "batch=256,512", "--anchor", anchor)
    steps = {row["point"]["batch"]: row["prediction"]["step_s"] for row in found["rows"]}
    assert steps[256] == pytest.approx(STEP_S)


def test_python_takes_anchors_too(anchor: str) -> None:
    found = api.predict(
        "tiny-2m",
        "2x2xH100,2xNDR",
        "tp=2,dp=rest,mbs=64,sp=true",
        devices=4,
        stack="megatron-core",
        batch=256,
        anchor=[anchor],
    )
    assert found.step_s == pytest.approx(STEP_S)


def test_a_files_models_and_machines_are_found_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The anchor lies in another folder than the model that it names."""
    (tmp_path / "anchors").mkdir()
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "own.toml"
    shape = simgpt("models", "tiny-2m", "--json")
    fields = json.loads(shape.out)
    kept = {key: fields[key] for key in ("layers", "hidden", "heads", "sequence", "vocab")}
    model.write_text("".join(f"{key} = {value}\n" for key, value in kept.items()), encoding="utf-8")
    question = ("own.toml", *ASKED[1:])
    assert simgpt("compare", LOG, *question, "--save", "anchors/own.toml").status == 0
    found = answer("predict", *question, "--anchor", "anchors/own.toml")
    assert found["step_s"] == pytest.approx(STEP_S)
    monkeypatch.chdir(tmp_path / "anchors")
    found = answer("predict", "../own.toml", *ASKED[1:], "--anchor", "own.toml")
    assert found["step_s"] == pytest.approx(STEP_S)


GOOD = {
    "model": '"tiny-2m"',
    "machine": '"perlmutter"',
    "devices": "8",
    "batch": "16",
    "plan": '"dp=rest"',
}
MEASURED = '[measured]\nstep = "3 ms"\n'


@pytest.mark.parametrize(
    ("change", "measured"),
    [
        ({}, ""),
        ({}, "[measured]\nstep = 3\n"),
        ({}, '[measured]\nstep = "0 s"\n'),
        ({}, '[measured]\nstep = "-1 s"\n'),
        ({}, '[measured]\nstep = "2e5 s"\n'),
        ({}, '[measured]\nstep = "3 ms"\nsteps_per_day = 3\n'),
        ({}, '[measured]\nstep = "3 ms"\npeak = "lots"\n'),
        ({}, '[measured]\nstep = "3 ms"\npeak = "3 GiB"\n'),
        ({}, '[measured]\nstep = "3 ms"\npeak = "3 GiB"\npeak_of = "guessed"\n'),
        ({}, MEASURED + "[[point]]\nbatch = 32\n"),
        ({"model": '"tiny-nothing"'}, MEASURED),
        ({"batch": "15"}, MEASURED),
        ({"nonsense": "1"}, MEASURED),
    ],
)
def test_a_file_that_is_no_anchor_is_refused_by_its_name(
    change: dict[str, str], measured: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.toml"
    lines = [f"{key} = {value}" for key, value in (GOOD | change).items()]
    path.write_text("\n".join([*lines, measured]), encoding="utf-8")
    said = simgpt(
        *("predict", "tiny-2m", "-m", "perlmutter", "-n", "8", "--batch", "16"),
        *("--anchor", str(path)),
    )
    assert said.status == 2
    assert said.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ("predict", *ASKED, "--trace", "t.json"),
        ("predict", *ASKED, "--noise", "2%"),
        ("why", *ASKED, "--roofline", "r.png"),
        ("search", *QUESTION, "--batch", "256", "--rank-by", "axonn"),
    ],
)
def test_what_cannot_be_scaled_is_refused(
    words: tuple[str, ...], anchor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = simgpt(*words, "--anchor", anchor)
    assert said.status == 2
    assert "--anchor" in said.err


def test_an_anchor_given_twice_is_refused(anchor: str) -> None:
    said = simgpt("predict", *ASKED, "--anchor", anchor, "--anchor", anchor)
    assert said.status == 2


def test_a_search_takes_no_log_whose_plan_is_not_known() -> None:
    said = simgpt("search", *QUESTION, "--batch", "256", "--anchor", LOG)
    assert said.status == 2
    assert "--save" in said.sentence


def test_no_anchor_is_written_of_a_job_that_contradicts_the_question(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    said = simgpt("compare", LOG, *LARGER, "--save", str(path))
    assert said.status == 2
    assert not path.exists()


def test_the_sample_of_the_documentation_is_what_compare_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    path, log = tmp_path / "sample.toml", "docs/samples/megatron-lm-invented.log"
    software = ("--software", "Megatron-Core 0.12, invented")
    assert simgpt("compare", log, *DOCUMENTED, "--save", str(path), *software).status == 0
    saved = path.read_text(encoding="utf-8")
    assert saved == (ROOT / log).with_suffix(".toml").read_text(encoding="utf-8")
    assert saved in (ROOT / "docs/compare.md").read_text(encoding="utf-8")


def test_a_sweep_says_how_far_which_anchor_moved_its_steps(anchor: str) -> None:
    """Twice the devices are one doubling away."""
    asked = (*TWICE, *STACK, *PLAN)
    more = ("--batch", "256", "--sweep", "devices=4,8", "--anchor", anchor)
    said = simgpt("predict", *asked, *more).out
    rows = answer("predict", *asked, *more)["rows"]
    factors = sorted(row["prediction"]["anchor"]["factor"] for row in rows)
    assert_names(said, f"{factors[0]:.3f}", f"{factors[1]:.3f}", anchor, "0.0", "1.0")
