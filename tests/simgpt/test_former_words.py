"""Commands and files in the words of version 0.2: x, context, data, pipe, interleave, micro_batch,
sequence_parallel, expert and expert_tensor. The files were written at 97a48c5b."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from executor.checkpoints.manifest import read_manifest
from simulator.stacks import load_stack
from tests.simgpt.face import simgpt
from validation.report.answers import read_answers
from workload.plan import Plan
from workload.plan_text import KEYS, parse_plan
from workload.words.former_words import FORMER_WORDS

FILES = Path(__file__).parent / "former_files"
ANSWERS = ("predict.json", "experts.json", "search.json", "why.json", "sweep")
FORMER = re.compile(
    r"(?<![\w.])(data|pipe|context|interleave|micro_batch|sequence_parallel|expert)="
)


def test_a_plan_in_former_words_is_the_same_plan() -> None:
    former = (
        "x=2,context=2,data=4,pipe=2,interleave=2,micro_batch=1,sequence_parallel=true,expert=4,"
        "expert_tensor=1,order=x-y-z-context-pipe-data"
    )
    now = "tp=2,cp=2,dp=4,pp=2,vpp=2,mbs=1,sp=true,ep=4,etp=1,order=tp-cp-pp-dp"
    assert parse_plan(former, batch=16) == parse_plan(now, batch=16)


@pytest.mark.parametrize(("former", "now"), FORMER_WORDS.items())
def test_each_former_word_is_a_key_of_today_and_none_itself(former: str, now: str) -> None:
    assert now in KEYS
    assert former not in KEYS


def test_a_table_in_former_words_is_the_same_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("x = 2\ndata = 2\nmicro_batch = 1\nsequence_parallel = true\n")
    words = ["tiny-10m", "-m", "1x8xH100", "-n", "4", "--batch", "4", "--json"]
    former = json.loads(simgpt("predict", *words, "--plan", str(path)).out)
    now = json.loads(simgpt("predict", *words, "--plan", "tp=2,dp=2,mbs=1,sp=true").out)
    assert former["plan"] == now["plan"]
    assert former["step_s"] == now["step_s"]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_report_of_former_answers_speaks_todays_words(name: str) -> None:
    found = read_answers([FILES / name])
    assert found.predictions
    for answer in found.predictions:
        assert not FORMER.search(answer.plan)
        assert not re.search(r"\b(tp|y|z|cp|pp)=1\b", answer.plan)
        assert not {"x", "data", "pipe"} & {*answer.breakdown_s}
    assert not FORMER.search(json.dumps([str(each) for each in found.findings]))


def test_a_page_is_made_of_former_answers(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said = simgpt("report", *(str(FILES / name) for name in ANSWERS), "-o", str(page))
    assert said.status == 0
    shown = re.sub(r"<pre>.*?</pre>", "", page.read_text(encoding="utf-8"))  # commands as typed
    assert not FORMER.search(shown)


def test_the_best_plan_of_a_former_search_is_predicted_again() -> None:
    words = ["tiny-10m", "-m", "1x8xH100", "-n", "8", "--batch", "8", "--stack", "megatron-core"]
    found = json.loads((FILES / "search.json").read_text(encoding="utf-8"))["plans"][0]["plan"]
    said = simgpt("predict", *words, "--plan", str(FILES / "search.json"), "--json")
    plan = json.loads(said.out)["plan"]
    assert said.status == 0
    assert [plan[key] for key in ("tp", "pp", "dp", "mbs", "sp")] == [
        found[key] for key in ("x", "pipe", "data", "micro_batch", "sequence_parallel")
    ]


def test_a_former_run_is_compared_with_the_prediction_of_its_plan() -> None:
    path = str(FILES / "run.json")
    plan = ("--plan", "tp=2,dp=2,precision=fp32,zero=1", "--batch", "8")
    said = simgpt("compare", path, "tiny-30k", "-m", "1x8xH100", *plan, "--warm-up", "0")
    assert said.status == 0
    assert "the job's plan was" not in said.out
    other = simgpt(
        "compare",
        path,
        "tiny-30k",
        "-m",
        "1x8xH100",
        "--plan",
        "dp=4",
        "--batch",
        "8",
        "--warm-up",
        "0",
    )
    assert "the job's plan was tp=2,dp=2" in other.out


def test_a_former_manifest_is_read_with_the_axes_of_today() -> None:
    found = read_manifest(FILES / "manifest.json")
    assert (found.grid.tp, found.grid.dp) == (2, 2)
    axes = {axis for each in found.layouts.values() for axis in (*sum(each.split, ()), *each.flat)}
    assert axes <= {"tp", "y", "z", "cp", "dp", "shard", "replica"}
    assert "tp" in axes


@pytest.mark.distributed
def test_a_run_goes_on_from_a_checkpoint_in_former_words(tmp_path: Path) -> None:
    """The manifest of a checkpoint of today is rewritten in former words, with its digest."""
    words = ["tiny-30k", "--plan", "tp=2,precision=fp32", "--ranks", "2", "--batch", "4"]
    words += ["-m", "1x8xH100", "--json"]
    whole = simgpt("run", *words, "--steps", "4", "--save", str(tmp_path / "whole"))
    simgpt("run", *words, "--steps", "2", "--save", str(tmp_path / "half"))
    (manifest,) = (tmp_path / "half").glob("*/manifest.json")
    manifest.write_text(in_former_words(manifest.read_text()))
    said = simgpt("run", *words, "--steps", "4", "--save", str(tmp_path / "half"), "--resume")
    assert said.status == 0
    assert json.loads(said.out)["losses"] == json.loads(whole.out)["losses"][2:]


def in_former_words(text: str) -> str:
    """A manifest as version 0.2 would have written it."""
    from executor.checkpoints.manifest import manifest_text

    former = {now: then for then, now in FORMER_WORDS.items()}

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(renamed, value))
        return former.get(value, value) if isinstance(value, str) else value

    found = json.loads(text)["manifest"]
    found["plan"] = {former.get(key, key): value for key, value in found["plan"].items()}
    found["plan"]["order"] = "x-y-z-data-pipe"
    for tensor in found["tensors"].values():
        tensor["layout"] |= {key: renamed(tensor["layout"][key]) for key in ("split", "flat")}
    return manifest_text(found)


def test_a_stack_in_former_words_is_the_same_stack() -> None:
    stack = load_stack(str(FILES / "stack.toml"))
    assert stack.can["axes"] == ["tp", "cp", "dp", "pp"]
    assert stack.can["order"] == ["tp-dp-pp", "tp-cp-pp-dp"]
    assert stack.plan_defaults(1, Plan(tp=2, batch=1, mbs=1))["sp"] is True
    assert stack.plan_defaults(1, Plan(batch=1, mbs=1))["sp"] is False
    assert stack.vocabulary["times_tp"] is True


def test_a_study_in_former_words_has_the_points_of_today(tmp_path: Path) -> None:
    said = simgpt("sweep", str(FILES / "study.toml"), "-o", str(tmp_path / "found"))
    assert said.status == 0
    lines = (tmp_path / "found" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["point"]["plan.tp"], row["point"]["plan.pp"]) for row in rows] == [
        (1, 1), (1, 2), (2, 1), (2, 2)
    ]  # fmt: skip
