"""`simgpt predict`: settings, files, batches and traces do what they say."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.messages import assert_names
from tests.simgpt.face import asked, simgpt
from topologies.files.units import format_energy
from topologies.machine import machine_to_dict
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.lowering import lower
from workload.plan_text import parse_plan

PLAN = "tp=2,z=2,dp=2,mbs=2"
WORDS = ("predict", "tiny-1m", "-m", "frontier", "--plan", PLAN, "--batch", "16")


def predicted(*words: str) -> dict[str, Any]:
    said = asked(*words, "--json")
    assert said.status == 0, said.err
    record: dict[str, Any] = json.loads(said.out)
    assert record["asked"].pop("command") == shlex.join(["simgpt", *words, "--json"])
    return record


def test_the_plan_string_gives_the_same_prediction_again() -> None:
    first = predicted(*WORDS)
    again = predicted(*WORDS[:4], "--plan", first["plan_string"], "--batch", "16")
    assert again == first


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_plan_file_is_the_plan(suffix: str, tmp_path: Path) -> None:
    table = {"tp": 2, "z": 2, "dp": 2, "mbs": 2}
    text = "\n".join(f"{k} = {v}" for k, v in table.items())
    path = tmp_path / f"plan.{suffix}"
    path.write_text(text if suffix == "toml" else json.dumps(table), encoding="utf-8")
    assert predicted(*WORDS[:4], "--plan", str(path), "--batch", "16") == predicted(*WORDS)


def test_tokens_are_sequences_times_their_length() -> None:
    tokens = str(16 * find_model("tiny-1m").sequence)
    assert predicted(*WORDS[:-2], "--batch-tokens", tokens) == predicted(*WORDS)


def test_a_setting_changes_the_machine() -> None:
    usual = predicted(*WORDS)
    smaller = predicted(*WORDS, "--set", "device.memory=32 GiB", "--set", "device.reserve=3 GiB")
    assert smaller["memory"]["capacity_bytes"] == 29 * 2**30
    slower = predicted(*WORDS, "--set", "device.launch=1 ms")
    assert slower["step_s"] > usual["step_s"]


def test_tuned_matmul_forms_and_what_they_save_stand_in_text_and_json() -> None:
    plan = f"{PLAN},matmul_forms=tuned"
    words = (*WORDS[:5], plan, *WORDS[6:], "--set", "device.matmul.forms.NT=0.01")
    tuning = predicted(*words)["matmul_forms"]
    plain = predicted(*WORDS, *words[-2:])
    assert plain["matmul_forms"] is None
    saved = plain["breakdown_s"]["compute"] - predicted(*words)["breakdown_s"]["compute"]
    assert tuning["compute_saved_s"] == pytest.approx(saved)
    assert {way["form"] for way in tuning["transposed"]} == {"NT"}
    assert_names(simgpt(*words).out, f"{len(tuning['transposed'])} of {tuning['matmuls']}")
    assert_names(simgpt(*words[:-2]).out, f"0 of {tuning['matmuls']}")


def test_the_breakdown_sums_to_the_step() -> None:
    record = predicted(*WORDS)
    assert sum(record["breakdown_s"].values()) == pytest.approx(record["step_s"], rel=1e-9)


def test_training_on_tokens_takes_so_many_steps_of_the_same_cost() -> None:
    record = predicted(*WORDS, "--tokens", "3M")
    tokens_per_step = 16 * find_model("tiny-1m").sequence
    training, cost = record["training"], record["cost"]
    assert training["steps"] == -(-3_000_000 // tokens_per_step)
    assert training["time_s"] == pytest.approx(training["steps"] * record["step_s"])
    assert training["energy_j"] == pytest.approx(training["steps"] * cost["energy_j_per_step"])
    assert "\n3.00 M tokens\n" in simgpt(*WORDS, "--tokens", "3e6").out


def silent_on(tmp_path: Path, *keys: str) -> str:
    """The host's file without its facts on some power."""
    machine = load_machine("host")
    facts = tuple(fact for fact in machine.entries if not fact.key.startswith(keys))
    path = tmp_path / "silent.json"
    path.write_text(json.dumps(machine_to_dict(replace(machine, entries=facts))), encoding="utf-8")
    return str(path)


def test_a_machine_without_power_says_so(tmp_path: Path) -> None:
    path = silent_on(tmp_path, "power.", "device.power.")
    words = ("predict", "tiny-1m", "-m", path, "--plan", "dp=2,precision=fp32")
    said = simgpt(*words, "--tokens", "3M").out
    assert_names(said, "power")
    assert not re.search(r"\d [kMG]?(J|Wh)\b", said)
    assert predicted(*words)["cost"]["energy_j_per_step"] is None


def test_where_the_nodes_power_is_not_known_the_devices_energy_is_said_as_that(
    tmp_path: Path,
) -> None:
    words = ("--plan", "dp=2,precision=fp32", "--tokens", "3M")
    said = predicted("predict", "tiny-1m", "-m", silent_on(tmp_path, "power."), *words)
    cost, each = said["cost"], load_machine("host").device.power
    assert each is not None
    drawn = 2 * (each.idle_w + cost["busy"] * (each.max_w - each.idle_w))
    assert cost["devices_energy_j_per_step"] == pytest.approx(said["step_s"] * drawn)
    assert (cost["energy_j_per_step"], said["training"]["energy_j"]) == (None, None)
    text = simgpt("predict", "tiny-1m", "-m", silent_on(tmp_path, "power."), *words).out
    joules = cost["devices_energy_j_per_step"]
    assert_names(text, format_energy(joules), format_energy(said["training"]["steps"] * joules))


def test_an_output_file_holds_the_answer_and_stdout_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    said = simgpt(*WORDS, "--json", "-o", str(path))
    assert (said.status, said.out, said.err) == (0, "", f"wrote {path}\n")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["asked"].pop("command").endswith(f" --json -o {path}")
    assert record == predicted(*WORDS)


def test_the_trace_has_every_op_and_no_track_overlaps_itself(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    record = predicted(*WORDS, "--trace", str(path))
    trace = json.loads(path.read_text(encoding="utf-8"))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    first = [event["name"] for event in slices if event["pid"] == 0]
    program = lower(find_model("tiny-1m"), parse_plan(PLAN, batch=16))
    assert sorted(first) == sorted(op.name for op in program.ops)
    assert_tracks_in_order(slices)
    last_us = max(event["ts"] + event["dur"] for event in slices)
    assert last_us == pytest.approx(record["step_s"] * 1e6, rel=1e-6)


def assert_tracks_in_order(slices: list[dict[str, Any]]) -> None:
    """No two slices of one track at once, to a nanosecond; times in microseconds."""
    tracks = defaultdict(list)
    for event in slices:
        assert event["dur"] >= 0
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        spans.sort()
        for before, after in pairwise(spans):
            assert before[1] <= after[0] + 1e-3


def test_the_plan_of_an_answer_is_a_plan_s_file(tmp_path: Path) -> None:
    asks = ("predict", "tiny-1m", "-m", "frontier", "-n", "8", "--batch", "16", "--json")
    plan = "tp=2,pp=2,dp=2,sp=true,stage_layers=1+3,mbs=2,overlap=dp"
    first = json.loads(simgpt(*asks, "--plan", plan).out)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(first["plan"]))
    again = json.loads(simgpt(*asks, "--plan", str(path)).out)
    assert (again["plan"], again["step_s"]) == (first["plan"], first["step_s"])


@pytest.mark.parametrize(("sequence", "more"), [("512", []), ("32768", ["MFU (causal attention)"])])
def test_what_a_causal_mask_leaves_of_the_mfu_is_said_where_it_is_much_less(
    sequence: str, more: list[str]
) -> None:
    text = simgpt(*WORDS, "--model-set", f"sequence={sequence}").out
    labels = [line[:30].strip() for line in text.splitlines() if "MFU" in line]
    assert labels == ["MFU", *more]


def test_the_mfu_says_of_which_peak_it_is_where_matmuls_have_another() -> None:
    plan = ("--stack", "simgpt", "--plan", "dp=rest,recipe=fp8-tensorwise")
    text = simgpt("predict", "tiny-1m", "-m", "dgx-h100", "-n", "8", *plan, "--batch", "16").out
    (line,) = [line for line in text.splitlines() if line.startswith("MFU ")]
    assert_names(line, "bf16")


FP8 = (
    *("tiny-1m", "-m", "dgx-h100", "-n", "8", "--batch", "16", "--stack", "nemo"),
    *("--plan", "tp=2,dp=rest,mbs=1,zero=0,precision=fp8"),
)


def test_fp8_of_a_stack_is_said_and_its_plan_gives_the_same_prediction_again() -> None:
    """The plan's line, too, has what stands at its default and not at the stack's, as zero=0."""
    text, first = simgpt("predict", *FP8).out, predicted("predict", *FP8)
    plan = "tp=2,dp=4,mbs=1,sp=true,gradients=bf16,zero=0,precision=fp8"
    assert first["plan_string"] == plan
    assert predicted("predict", *FP8[:-1], plan) == first
    assert "".join(text.split("\n     ")).startswith(
        f"tiny-1m on 8 devices of dgx-h100\nplan {plan}\n"
    )
    lines = text.splitlines()
    assert any("bf16" in line and "fp8" in line for line in lines)
    assert all("bf16" in line for line in lines if line.startswith("MFU"))


@pytest.mark.slow
@pytest.mark.usefixtures("few_numbers")
def test_plans_beside_one_in_fp8_are_in_fp8_too() -> None:
    found = predicted("why", *FP8)
    other = min(found["why"]["neighbouring_plans"], key=lambda each: each["step_s"])
    assert other["plan_string"].endswith("precision=fp8")
    again = predicted("predict", *FP8[:-1], other["plan_string"])
    assert again["step_s"] == other["step_s"]


@pytest.mark.slow
def test_fp8_is_swept_beside_other_precisions() -> None:
    words = ("predict", *FP8[:-1], "tp=2,dp=rest,mbs=1", "--sweep", "precision=fp8,bf16")
    rows = predicted(*words)["rows"]
    assert {row["prediction"].get("fp8", False) for row in rows} == {True, False}
    for row in rows:
        again = predicted("predict", *FP8[:-1], row["prediction"]["plan_string"])
        assert again["step_s"] == row["prediction"]["step_s"]
    for each, is_said in (("fp8,bf16", True), ("bf16", False)):  # of which peak the MFU is
        said = simgpt(*words[:-1], f"precision={each}").out
        assert any("MFU" in line and "bf16" in line for line in said.splitlines()) == is_said


def test_a_file_called_json_gets_json_and_one_of_a_framework_its_own(tmp_path: Path) -> None:
    words = ("tiny-1m", "-m", "frontier", "-n", "8", "--plan", "dp=8", "--batch", "8")
    assert simgpt("predict", *words, "-o", str(tmp_path / "a.json")).status == 0
    assert simgpt("predict", *words, "-o", str(tmp_path / "a.txt")).status == 0
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["plan"]["dp"] == 8
    assert (tmp_path / "a.txt").read_text(encoding="utf-8").startswith("tiny-1m on 8 devices")
    plan = ("--plan", "zero=1,dp=8,mbs=1", "-n", "8", "--batch", "8", "--to", "deepspeed")
    said = simgpt("export", "tiny-1m", *plan, "-o", str(tmp_path / "ds.json"))
    assert said.status == 0
    assert "zero_optimization" in json.loads((tmp_path / "ds.json").read_text(encoding="utf-8"))
