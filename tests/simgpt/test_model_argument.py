"""The MODEL of every command, in every form, and `--model-set`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simgpt as simgpt_api
from simgpt.asked_again import ASKING
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from validation.report.answers import read_answers
from validation.report.figures.drawn_step import staged
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan_text import parse_plan

SHAPE = {"layers": 4, "hidden": 128, "heads": 8, "sequence": 128, "vocab": 256}
TEXT = ",".join(f"{key}={value}" for key, value in SHAPE.items())
ON = ("-m", "frontier", "-n", "8")
CONFIG = {
    "model_type": "llama",
    **{"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 8},
    **{"intermediate_size": 384, "max_position_embeddings": 512, "vocab_size": 256},
    **{"tie_word_embeddings": False, "rope_theta": 10000.0, "rms_norm_eps": 1e-5},
}


def predicted(*words: str) -> dict[str, Any]:
    said = simgpt("predict", *words, *ON, "--json")
    assert said.status == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "tiny").mkdir()
    path = tmp_path / "tiny" / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


def test_a_preset_its_fields_and_its_file_take_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    step_s = predicted("tiny-1m")["step_s"]
    for model in ("Tiny-1M", TEXT, str(tmp_path / "own.json")):
        assert predicted(model)["step_s"] == step_s


def test_a_field_that_is_set_is_the_model_s_own_and_stands_in_the_record() -> None:
    found = predicted("tiny-1m", "--model-set", "layers=6", "--model-set", "sequence=64")
    assert found["fields"] == {"layers": 6, "sequence": 64}
    own = predicted(TEXT.replace("layers=4", "layers=6").replace("=128,vocab", "=64,vocab"))
    assert found["step_s"] == own["step_s"] < predicted("tiny-1m")["step_s"] * 6 / 4
    assert own["fields"] == {}


@pytest.mark.slow
def test_why_and_search_take_the_model_that_predict_takes() -> None:
    asked = ("tiny-30k", "-m", "host", "--plan", "dp=1", "--model-set", "layers=6", "--json")
    step_s = json.loads(simgpt("predict", *asked).out)["step_s"]
    assert json.loads(simgpt("why", *asked).out)["step_s"] == step_s
    words = ("search", "tiny-1m", *ON, "--batch", "8", "--workers", "1", "--json")
    found = json.loads(simgpt(*words, "--plan", "dp=8", "--model-set", "layers=6").out)
    fixed = json.loads(simgpt(*words, "--plan", "dp=8").out)
    assert found["fields"] == {"layers": 6}
    assert found["plans"][0]["step_s"] > fixed["plans"][0]["step_s"]


def test_a_sweep_of_a_model_with_a_field_set_has_it_at_every_point() -> None:
    words = ("predict", "tiny-1m", *ON, "--model-set", "layers=6", "--sweep", "z=1,2", "--json")
    rows = json.loads(simgpt(*words).out)["rows"]
    assert [row["point"]["model.layers"] for row in rows] == [6, 6]
    first = predicted("tiny-1m", "--model-set", "layers=6", "--plan", "z=1,dp=rest")
    assert first["step_s"] in [row["prediction"]["step_s"] for row in rows]


def test_a_config_s_notes_go_to_stderr_and_not_into_the_answer(config: str) -> None:
    said = simgpt("predict", config, *ON, "--json")
    assert json.loads(said.out)["model"] == "tiny"
    assert said.err.count("\n") == 1
    assert_names(said.err, "tiny", "512", "max_position_embeddings", "--model-set sequence=8192")
    quiet = simgpt("predict", config, *ON, "--model-set", "sequence=64", "--json")
    assert (quiet.status, quiet.err) == (0, "")


def test_the_api_takes_what_the_command_takes_and_its_notes_are_warnings(config: str) -> None:
    step_s = simgpt_api.predict(TEXT, "frontier", "dp=rest", devices=8).step_s
    assert step_s == predicted("tiny-1m")["step_s"]
    with pytest.warns(UserWarning, match="512") as warned:
        found = simgpt_api.predict(config, "frontier", "dp=rest", devices=8)
    assert_names(str(warned[0].message), "tiny", "max_position_embeddings")
    assert found.step_s == predicted(config)["step_s"]


def test_a_study_takes_every_form_and_says_notes_once(config: str, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        f'machine = "frontier"\nplan = "dp=8"\n[sweep]\nmodel = ["tiny/config.json", "{TEXT}"]\n',
        encoding="utf-8",
    )
    said = simgpt("sweep", str(study), "-o", str(tmp_path / "out"), "--json")
    rows = {row["prediction"]["model"]: row for row in json.loads(said.out)["rows"]}
    assert rows["tiny"]["prediction"]["step_s"] == predicted(config)["step_s"]
    assert rows[TEXT]["prediction"]["step_s"] == predicted("tiny-1m")["step_s"]
    assert said.err.count("max_position_embeddings") == 1
    study.write_text(study.read_text() + "sequence = [64]\n", encoding="utf-8")
    assert simgpt("sweep", str(study), "-o", str(tmp_path / "own"), "--json").err == ""


@pytest.mark.usefixtures("forked_ranks")
def test_a_run_trains_the_model_with_the_field() -> None:
    words = ("run", "tiny-30k", "--no-predict", "--steps", "1", "--batch", "1", "--json")
    record = json.loads(simgpt(*words, "--model-set", "layers=3").out)
    program = lower(replace(find_model("tiny-30k"), layers=3), parse_plan("dp=1", batch=1))
    assert record["predicted_peak_bytes"] == program.peak.total_bytes
    assert record["peak_bytes"] >= program.peak.total_bytes


def test_models_shows_a_model_however_it_is_given(config: str) -> None:
    said = simgpt("models", config, "--model-set", "sequence=64", "--json")
    shown = json.loads(said.out)
    assert (shown["name"], shown["sequence"], shown["positions"]) == ("tiny", 64, "rope")
    assert simgpt("models", TEXT).out.startswith(f"{TEXT}\n")


@pytest.mark.parametrize("model", ["text", "config"])
def test_a_report_draws_the_step_of_a_model_with_a_field_set(
    model: str, config: str, tmp_path: Path
) -> None:
    answer = tmp_path / "p.json"
    words = (TEXT if model == "text" else config, "--model-set", "sequence=64")
    assert simgpt("predict", *words, *ON, "--json", "-o", str(answer)).status == 0
    found = read_answers([answer]).predictions[0]
    assert " --model-set sequence=64 " in ASKING.command_of(found.asked)
    assert staged(found, ASKING.step_of).prediction.step_s == found.step_s


PREDICT = "predict tiny-1m -m frontier -n 8"


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (f"{PREDICT} --model-set sequence", "--model-set sequence key=value"),
        (f"{PREDICT} --model-set =3", "--model-set =3 key=value"),
        (f"{PREDICT} --model-set sequence=", "--model-set sequence= key=value"),
        (f"{PREDICT} --model-set sequenze=3", "sequenze sequence"),
        (f"{PREDICT} --model-set sequence=4x", "sequence 4x"),
        (f"{PREDICT} --model-set tied=1", "tied 1 true false"),
        (f"{PREDICT} --model-set name=a", "--model-set name"),
        (f"{PREDICT} --model-set heads=3", "tiny-1m heads=3 hidden=128"),
        (f"{PREDICT} --model-set layers=0", "tiny-1m layers=0 1"),
        (f"{PREDICT} --model-set layers=2 --model-set layers=3", "--model-set layers"),
        (f"{PREDICT} --model-set x=3 --sweep z=1,2", "x sequence"),
        ("why tiny-1m -m frontier -n 8 --model-set x=3", "x sequence"),
        ("search tiny-1m -m frontier -n 8 --batch 8 --model-set x=3", "x sequence"),
        ("run tiny-30k --no-predict --model-set x=3", "x sequence"),
        ("models --model-set layers=2", "--model-set NAME"),
        ("sweep study.toml --model-set layers=2", "--model-set"),
        ("predict layers=2 -m frontier -n 8", "hidden heads sequence vocab"),
        ("predict tests/simgpt -m frontier -n 8", "tests/simgpt .toml .json config.json"),
        ("predict Lama-3.1-80B -m frontier -n 8", "Lama-3.1-80B llama-3.1-8b"),
        ("predict no.json -m frontier -n 8", "no.json"),
    ],
)
def test_a_wrong_model_gets_one_sentence(command: str, named: str) -> None:
    said = simgpt(*command.split())
    assert said.status == 2
    assert said.sentence.startswith("simgpt: ")
    assert_names(said.sentence, *named.split())


def test_layers_that_there_are_none_of_are_refused_by_their_name(config: str) -> None:
    Path(config).write_text('{"model_type": "qwen3_next"}', encoding="utf-8")
    said = simgpt("predict", config, *ON)
    assert said.status == 2
    assert_names(said.sentence, "config.json", "qwen3_next", "gated DeltaNet")
