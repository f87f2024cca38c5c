"""One question, asked of each command, is one step: whatever a question has must reach them all."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

import simgpt as api
from simgpt.asked_again import ASKING
from simgpt.commands.serve.answers import answered
from simgpt.studies.evaluate import rows_of
from simgpt.studies.inputs import inputs_of
from tests.examples import one_in
from tests.simgpt.face import simgpt
from tests.simgpt.studies.worlds import study
from validation.report.answers import answers_in
from validation.report.figures.drawn_step import staged

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of plans that may not fit

Words = Mapping[str, Any]
USUAL: Words = {
    "model": "tiny-mixtral-2m",
    "machine": "2x8xB200,8xNDR",
    "devices": 16,
    "batch": 32,
    "plan": "dp=rest",
    "stack": "simgpt",
}
LARGE: Words = {"machine": "frontier", "plan": "z=16,dp=rest"}
# What a question has over the usual one: options of commands, and what is set of the machine and
# the model. Each changes the time or the memory of the step.
FIELDS: Mapping[str, Words] = {
    "model": {"model": "tiny-1m"},
    "machine": {"machine": "dgx-h100"},
    "devices": {"devices": 8},
    "batch": {"batch": 64},
    "batch in tokens": {"batch": None, "batch_tokens": 64 * 256},
    "stack": {"stack": "megatron-core"},
    "another stack": {"stack": "fsdp"},
    "sequence": {"model_set": {"sequence": 512}},
    "layers": {"model_set": {"layers": 6}},
    "launches": {"set": {"device.launch": "1 ms"}},
    "precision": {"plan": "dp=rest,precision=fp32"},
    "recipe": {"plan": "dp=rest,recipe=mxfp8"},
    "fp8 of a stack": {"stack": "megatron-core", "plan": "dp=rest,precision=fp8"},
    "offload": {"plan": "dp=rest,zero=1,offload=optimizer"},
    "cp": {"plan": "cp=2,dp=rest"},
    "ep": {"plan": "ep=4,dp=rest"},
    "dispatcher": {"plan": "ep=4,dp=rest,dispatcher=all_gather"},
    "etp": {"plan": "tp=2,dp=rest,ep=4,etp=1,sp=true"},
    "pipeline": {"plan": "pp=2,dp=rest,mbs=1,schedule=gpipe"},
    "recompute": {"plan": "dp=rest,recompute=full"},
    "placement": {**LARGE, "placement": "scattered:2"},
}
RUN: dict[str, Any] = {"tokens": 1e9, "save_time": "60s", "mtbf": "1000h", "draws": 20}
PAGE = ("model", "machine", "devices", "stack", "plan", "batch", "batch_tokens")


def question(name: str) -> dict[str, Any]:
    """The question of that name, without the options that are not given."""
    given = {"usual": {}, "large": LARGE, **FIELDS}[name]
    return {key: each for key, each in {**USUAL, **given}.items() if each is not None}


@cache
def step(name: str) -> dict[str, Any]:
    """What `predict` answers to the question of that name."""
    return dict(api.predict(**question(name)).to_dict())


@pytest.mark.parametrize("name", one_in(2, FIELDS))
def test_a_row_of_a_sweep_is_the_step_of_its_point(name: str) -> None:
    """In a sweep of `predict`, here over the one value that the model has anyway, and in a study's
    file; and it is not the step of the question without that field."""
    words, alone = question(name), step(name)
    (swept,) = api.predict(**words, sweep={"dropout": [0]}).to_dict()["rows"]
    sets = words.pop("set", {}) | words.pop("model_set", {})
    asked = study({**words, "set": sets})
    (row,) = rows_of(inputs_of(asked), list(enumerate(asked.points())))
    for found in (swept["prediction"], json.loads(json.dumps(row["prediction"]))):
        assert found == {key: alone[key] for key in found}
    usual = step("usual" if name != "placement" else "large")
    assert (alone["step_s"], alone["memory"]) != (usual["step_s"], usual["memory"])


@pytest.mark.parametrize("name", FIELDS)
def test_a_whole_run_consists_of_the_steps_that_are_predicted(name: str) -> None:
    alone, run = step(name), api.plan_run(**question(name), **RUN).to_dict()
    assert run["mean_step_s"] == alone["step_s"]
    steps = RUN["tokens"] / (alone["tokens_per_s"] * alone["step_s"])
    assert run["steps"] == pytest.approx(steps, abs=1)
    assert run["node_s"] / run["median_s"] == pytest.approx(alone["cost"]["nodes"])


@pytest.mark.parametrize("name", FIELDS)
def test_a_report_knows_the_whole_question_of_an_answer(name: str) -> None:
    """What it draws, and the command that it shows, are of a step that takes as long."""
    (found,) = answers_in(alone := step(name), "tp").predictions
    assert staged(found, ASKING.step_of).prediction.step_s == alone["step_s"]
    again = json.loads(simgpt(*shlex.split(ASKING.command_of(found.asked))[1:], "--json").out)
    assert again["step_s"] == alone["step_s"]


@pytest.mark.parametrize("name", one_in(2, [n for n in FIELDS if {*FIELDS[n]} <= {*PAGE}]))
def test_the_page_answers_with_the_step_that_is_predicted(name: str) -> None:
    answer = answered("predict", {key: str(each) for key, each in question(name).items()})
    assert answer["prediction"]["step_s"] == step(name)["step_s"]


def test_lives_of_a_run_are_drawn_anew_with_another_seed_and_again_with_the_same() -> None:
    """Two nodes fail every hour each, for most of a day."""
    often = {**RUN, "tokens": 1e11, "mtbf": "1h"}
    found = [api.plan_run(**question("usual"), **often, seed=seed).to_dict() for seed in (0, 1, 1)]
    assert len({run["mean_step_s"] for run in found}) == 1
    first, second, again = (run["median_s"] for run in found)
    assert first != second == again
