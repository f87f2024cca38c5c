"""Wrong input gets one sentence and its exit status, and never a traceback."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tests.simgpt.face import simgpt

PREDICT = "predict gpt-5b -m frontier -n 8"
BENCH = "bench-network -m frontier"
RUN = "run tiny-30k --no-predict"
TOO_MANY = 10**8


@pytest.mark.parametrize(
    ("status", "command", "words"),
    [
        (2, "frobnicate", "no such command 'frobnicate'"),
        (2, "predict", "missing argument 'MODEL'"),
        (2, "predict nope -m frontier", "unknown model 'nope'"),
        (2, "predict gpt-5b -m fronteir -n 8", "nearest: frontier"),
        (2, "predict gpt-5b", "missing option '-m'"),
        (2, "predict gpt-5b -m frontier", "data=rest fills a number of devices: give it (-n)"),
        (2, "predict xyzzy -m frontier", "unknown model 'xyzzy'; `simgpt models` lists "),
        (2, f"{PREDICT} --batch 1e3", "invalid value for '--batch': '1e3' is not a whole number"),
        (2, f"{PREDICT} --plan Makefile", "a plan's file ends in .toml or .json, unlike Makefile"),
        (2, f"{PREDICT} -o same.txt --trace ./same.txt", "-o and --trace both name same.txt"),
        (2, f"{PREDICT} --output=", "the file to write has no name"),
        (2, f"{PREDICT} -o {'a' * 300}/x.json", "there is no folder"),
        (2, f"{PREDICT} -o {'a' * 300}", "File name too long"),
        (2, "machines host --figure a.svg -o ./a.svg", "-o and --figure both name a.svg"),
        (
            2,
            "machines alps --figure a.svg -o a-interconnect.svg",
            "-o and --figure both name a-interconnect.svg",
        ),
        (2, f"{PREDICT} --sweep z=1,2,1", "sweep.z has 1 twice"),
        (2, "search gpt-5b -m frontier -n 8 --batch 8 --time-limit soon", "is not a number"),
        (2, "predict gpt-5b -m frontier -n 0", "0 is not in the range"),
        (2, "predict gpt-5b -m frontier -n -3", "-3 is not in the range"),
        (2, f"{PREDICT} --batch 0", "0 is not in the range"),
        (2, f"{PREDICT} --batch-tokens 100", "nearest: 2048"),
        (2, f"{PREDICT} --batch-tokens 16384 --batch 8", "not both"),
        (2, f"{PREDICT} --tokens 12x", "12x is no number of tokens; write it like 300e9"),
        (2, f"{PREDICT} --tokens -1", "-1 is no number of tokens"),
        (2, f"{PREDICT} --tokens nan", "nan is no number of tokens"),
        (2, f"{PREDICT} --plan microbatch=3", "did you mean micro_batch?"),
        (2, f"{PREDICT} --plan x=abc", "x=abc must be a whole number"),
        (2, f"{PREDICT} --plan x=1,x=2", "x stands twice"),
        (2, f"{PREDICT} --plan x=0", "x=0 must be at least 1"),
        (2, f"{PREDICT} --plan recompute=half", "full, per_op, or full:N for the first"),
        (
            3,
            "predict tiny-30k -m frontier --plan x=3",
            "heads=8 and ffn=128; nearest: 2",
        ),
        (3, f"{PREDICT} --batch 7", "batch=7 does not divide over z*data=8"),
        (3, f"{PREDICT} --batch 16 --plan data=8,micro_batch=3", "try 1, 2"),
        (3, f"{PREDICT} --plan data=4", "multiply to 4 ranks, not to 8 devices"),
        (3, f"{PREDICT} --plan expert=8", "multiply to 1 rank, not to 8 devices"),
        (3, "predict gpt-5b -m frontier -n 1000000", "has 78848 devices"),
        (3, "predict gpt-5b -m frontier -n 1000000 --batch 64", "has 78848 devices"),
        (3, "why gpt-5b -m frontier -n 1000001 --plan z=8,data=rest", "has 78848 devices"),
        (3, "search gpt-5b -m frontier -n 1000001 --batch 64", "has 78848 devices"),
        (2, f"{PREDICT} --set software.compute_share=2", "must be from 0 to below 1"),
        (2, f"{BENCH} --sizes a:b", '--sizes "a" is not a number with a unit'),
        (2, f"{BENCH} --sizes 2GB:1GB", "--sizes 2GB:1GB runs backwards"),
        (2, f"{BENCH} --sizes 0B", "--sizes 0B is no size"),
        (2, f"{BENCH} --devices 64:16", "--devices 64:16 runs backwards"),
        (2, f"{BENCH} --devices a", "--devices a is no number of devices"),
        (
            2,
            f"{BENCH} --algorithm foo",
            '--algorithm "foo" is no algorithm of all_gather; try auto',
        ),
        (2, f"{PREDICT} --set device.memory", "write key=value"),
        (2, f"{PREDICT} --set device.memory=3", "has no unit"),
        (2, f"{PREDICT} --set device.mem=3", "nearest: device.memory"),
        (2, f"{PREDICT} --set nodes=1.5", "it wants a whole number"),
        (2, f"{PREDICT} -o /nowhere/x", "there is no folder /nowhere"),
        (2, f"{PREDICT} --trace /nowhere/x", "there is no folder /nowhere"),
        (2, f"{PREDICT} --sweep z", "--sweep z: write key=v1,v2"),
        (2, f"{PREDICT} --sweep z=", "--sweep z= has an empty value"),
        (2, f"{PREDICT} --sweep z=1,,2", "has an empty value"),
        (2, f"{PREDICT} --sweep z=1,two", "z=two must be a whole number"),
        (2, f"{PREDICT} --sweep z=1 --sweep z=2", "--sweep z stands twice"),
        (2, f"{PREDICT} --sweep zet=1", "unknown key 'zet'; did you mean"),
        (2, f"{PREDICT} --sweep plan=x=1,z=2", "sweep the plan's keys"),
        (2, f"{PREDICT} --sweep machine=alps,mars", 'no machine is called "mars"'),
        (2, f"{PREDICT} --sweep device.lunch=1us", "nearest: device.launch"),
        (2, f"{PREDICT} --sweep z=1 --compute measured", "neither --trace nor --compute"),
        (2, f"{PREDICT} --sweep z=1 --set nodes", "write key=value"),
        (2, "sweep", "missing argument 'STUDY'"),
        (2, "sweep /nowhere/x.toml", "cannot read the study /nowhere/x.toml: No such file"),
        (2, "sweep .", "cannot read the study .: Is a directory"),
        (2, "sweep x.toml --workers 0", "0 is not in the range"),
        (2, "sweep x.toml --limit 0", "0 is not in the range"),
        (2, "sweep x.toml --timeout nan", "nan is not a finite number"),
        (2, "models nope", "unknown model 'nope'"),
        (2, "machines nope", 'no machine is called "nope"'),
        (2, "run nope", "unknown model 'nope'"),
        (2, f"{RUN} --ranks 0", "0 is not in the range"),
        (2, f"{RUN} --lr nan", "nan is not a finite number"),
        (2, f"{RUN} --timeout inf", "inf is not"),
        (2, f"{RUN} --data /nowhere/x", "cannot read the text /nowhere/x"),
        (2, f"{RUN} --data .", "Is a directory"),
        (3, f"{RUN} --plan x=3", "x=3 does not divide heads=8"),
        (3, f"{RUN} --plan data=2 --ranks 3", "2 ranks, not to 3 devices"),
        (5, f"{RUN} --plan x={TOO_MANY}", "too many to start on this machine"),
        (2, "run tiny-30k -m nope", 'no machine is called "nope"'),
        (2, "validate host -m frontier", "frontier has"),
        (2, "validate device -m frontier", "frontier has"),
        (2, "validate host -m nope", 'no machine is called "nope"'),
        (2, "validate host --tolerance nan", "nan is not a finite number"),
        (2, "calibrate -o /nowhere/x.json", "there is no folder /nowhere"),
    ],
)
def test_a_wrong_word_on_the_command_line(status: int, command: str, words: str) -> None:
    said = simgpt(*command.split())
    assert said.status == status
    assert said.sentence.startswith("simgpt: ")
    assert words in said.sentence


PLANS = {
    "a.toml": "garbage = = 1",
    "a.json": '{"x": ',
    "list.json": "[1, 2]",
    "key.toml": "foo = 3",
    "half.toml": "x = 2.5",
    "null.json": '{"x": null}',
    "overlap.json": '{"overlap": 3}',
    "table.toml": "[x]\na = 1",
}
MODEL = "layers = 1\nhidden = 8\nheads = 2\nsequence = 4\nvocab = 256\n"
MODELS = {
    "a.toml": "garbage = = 1",
    "less.toml": "layers = 1",
    "zero.toml": MODEL.replace("8", "0"),
    "heads.toml": MODEL.replace("= 2\n", "= 3\n"),
    "key.toml": MODEL + "bogus = 1",
    "kind.toml": MODEL.replace("1", "1.5", 1),
}
MACHINES = {
    "a.toml": "garbage = = 1",
    "a.json": '{"x": ',
    "list.json": "[1, 2]",
    "bare.toml": "nodes = 2",
    "empty.json": "{}",
}


STUDY = 'model = "tiny-30k"\nmachine = "host"\nplan = "data=1,precision=fp32"\n'
STUDIES = {
    "garbage = = 1": "is not valid TOML",
    "model = 3": "model = 3 must be text",
    'model = "tiny-30k"': "names no machine",
    STUDY + "machines = 3": "unknown key 'machines'",
    STUDY + "sweep = 3": "write [sweep] above its keys",
    STUDY + "[sweep]\nx = []": "sweep.x is empty",
    STUDY + "[scaling]\nkind = 3": 'must be "weak" or "strong"',
    STUDY + '[scaling]\nkind = "strong"\ndevices = [1, 2, 1]': "scaling.devices has 1 twice",
    STUDY + "[set]\nplan.zero = 'many'": "zero=many must be a whole number",
    STUDY.replace("host", "mars"): 'no machine is called "mars"',
    STUDY.replace("host", "mars.toml"): "cannot read",
    STUDY.replace("tiny-30k", "tiny.toml"): "cannot read the model",
}


@pytest.mark.parametrize("text", STUDIES)
def test_a_malformed_study_file(text: str, tmp_path: Path) -> None:
    path = _file(tmp_path, "study.toml", text)
    said = simgpt("sweep", path, "-o", str(tmp_path / "out"))
    assert (said.status, STUDIES[text] in said.sentence) == (2, True), said.sentence
    assert not (tmp_path / "out").exists()


def test_a_changed_study_in_the_same_folder(tmp_path: Path) -> None:
    words = ("sweep", str(tmp_path / "study.toml"), "-o", str(tmp_path / "out"))
    _file(tmp_path, "study.toml", STUDY)
    assert simgpt(*words).status == 0
    _file(tmp_path, "study.toml", STUDY + "devices = 1")
    said = simgpt(*words)
    assert (said.status, "holds the results of another study: devices" in said.sentence) == (
        2,
        True,
    )


def test_a_sweep_of_which_nothing_can_run_ends_with_3(tmp_path: Path) -> None:
    path = _file(tmp_path, "study.toml", STUDY + "[sweep]\nx = [3, 5]")
    said = simgpt("sweep", path, "-o", str(tmp_path / "out"))
    assert (said.status, said.err) == (3, "")
    assert "2 points: 0 can run, 2 cannot" in said.out


def test_a_failing_simulator_is_a_row_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of a kind")

    monkeypatch.setattr("simgpt.studies.evaluate.predict", broken)
    path = _file(tmp_path, "study.toml", STUDY)
    said = simgpt("sweep", path, "-o", str(tmp_path / "out"))
    assert (said.status, "ZeroDivisionError: of a kind" in said.out) == (1, True)
    assert said.err == "the simulator failed at 1 point, which is a bug\n"


@pytest.mark.parametrize(
    ("command", "name", "content"),
    [
        *(("predict tiny-30k -m frontier --plan {}", *file) for file in PLANS.items()),
        *(("predict {} -m frontier --plan data=1", *file) for file in MODELS.items()),
        *(("predict tiny-30k -m {} --plan data=1", *file) for file in MACHINES.items()),
    ],
)
def test_a_malformed_file(command: str, name: str, content: str, tmp_path: Path) -> None:
    said = simgpt(*command.format(_file(tmp_path, name, content)).split())
    assert (said.status, said.sentence[:8]) == (2, "simgpt: ")


@pytest.mark.parametrize("command", ["predict tiny-30k -m {} --plan data=1", "run tiny-30k -m {}"])
@pytest.mark.parametrize("name", ["missing.toml", "folder.toml"])
def test_a_file_that_cannot_be_read(command: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    said = simgpt(*command.format(tmp_path / name).split())
    assert said.status == 2
    assert "cannot read" in said.sentence


def _file(folder: Path, name: str, content: str) -> str:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return str(path)


def test_a_text_shorter_than_a_sequence(tmp_path: Path) -> None:
    said = simgpt(*RUN.split(), "--data", _file(tmp_path, "short.txt", "hi"))
    assert said.status == 2
    assert "the text has 2 bytes; one sequence of tiny-30k needs 17" in said.sentence


@pytest.mark.parametrize("command", ["run tiny-30k", "calibrate", "validate host"])
def test_missing_torch_is_said_with_what_brings_it(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def without_torch(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "torch" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_torch)
    said = simgpt(*command.split())
    assert said.status == 5
    assert "pip install 'simgpt[run]'" in said.sentence


HOME = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "status", "words"),
    [
        ({"RANK": "0"}, 5, "RANK is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, 5, "WORLD_SIZE is set, but RANK is not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, 5, "MASTER_ADDR is not"),
        ({**HOME, "RANK": "one", "WORLD_SIZE": "2"}, 5, "RANK=one must be a whole number"),
        ({**HOME, "RANK": "2", "WORLD_SIZE": "2"}, 5, "RANK=2 must be below WORLD_SIZE=2"),
        ({**HOME, "RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "no"}, 5, "MASTER_PORT=no"),
        ({"SLURM_PROCID": "x", "SLURM_NTASKS": "2"}, 5, "SLURM_PROCID=x"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "0"}, 5, "SLURM_NTASKS=0"),
        ({**HOME, "RANK": "0", "WORLD_SIZE": "2"}, 2, "--ranks 3, but this process is one of 2"),
    ],
)
def test_a_broken_launch_environment(
    environment: dict[str, str], status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = simgpt(*RUN.split(), "--ranks", "3")
    assert said.status == status
    assert words in said.sentence


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMGPT_CACHE", "/dev/null/cache")
    said = simgpt("run", "tiny-30k")
    assert said.status == 5
    assert "--no-predict" in said.err.splitlines()[-1]


PLAN_TOO_LARGE = ("predict", "gpt-175b", "-m", "frontier", "--plan", "data=1")


def test_a_plan_that_does_not_fit_is_answered_and_ends_with_3() -> None:
    said = simgpt(*PLAN_TOO_LARGE)
    assert said.status == 3
    assert said.err.startswith("does not fit by ")
    assert f"this plan {said.err.strip()}" in " ".join(said.out.split())
    record = json.loads(simgpt(*PLAN_TOO_LARGE, "--json").out)
    assert (record["memory"]["fits"], record["remedy"]) == (False, said.err.strip())


def test_why_begins_with_a_plan_that_does_not_fit() -> None:
    said = simgpt("why", "gpt2-xl", "-m", "1x2xH100", "--plan", "data=2", "--batch", "512")
    assert said.status == 3
    first = " ".join(said.out.partition("\n\n")[0].split())
    assert first == f"this plan {said.err.strip()}"


@pytest.mark.parametrize(
    ("machine", "plan", "words"),
    [
        ("48x8xH100", "data=rest", "give it (-n), or say data=8; -n 384 is all of 48x8xh100"),
        ("48x8xH100", "tp=2,pp=2,dp=rest", "give it (-n); -n 384 is all of 48x8xh100"),
        ("frontier", "tp=2,dp=rest", "give it (-n)"),
        ("dgx-h100", "tp=2,dp=rest", "give it (-n)"),
    ],
)
def test_the_devices_that_rest_fills_are_asked_for_with_those_of_the_machine(
    machine: str, plan: str, words: str
) -> None:
    said = simgpt("predict", "gpt-5b", "-m", machine, "--plan", plan)
    assert (said.status, said.out) == (2, "")
    assert said.sentence.endswith(f"data=rest fills a number of devices: {words}")


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("2x8xH100", "NICs assumed, as -m leaves them out: 8 of 400 Gbit/s in each node"),
        ("2x8xH100,4xnic", "NICs assumed, as -m leaves them out: 4 of 400 Gbit/s in each node"),
        ("2x8xH100:pytorch", "NICs assumed, as -m leaves them out: 8 of 400 Gbit/s in each node"),
        ("2x8xH100,8xNDR", ""),
        ("1x8xH100", ""),
        ("dgx-h100", ""),
    ],
)
def test_nics_that_a_machines_parts_leave_out_are_named(machine: str, words: str) -> None:
    said = simgpt("predict", "tiny-2m", "-m", machine, "--plan", "data=8", "--batch", "8")
    assert [line for line in said.out.splitlines() if "NIC" in line] == [words] * bool(words)


def test_no_command_at_all_shows_the_help_and_ends_with_2() -> None:
    said = simgpt()
    assert (said.status, said.out) == (2, "")
    assert "Commands to ask:" in said.err
    assert said.err.endswith("\nsimgpt: missing command; see simgpt --help\n")


def test_an_interrupt_ends_with_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simgpt.commands.models.model_of", interrupted)
    said = simgpt("models", "gpt2")
    assert said.status == 130
    assert said.err.split() == ["simgpt:", "interrupted"]


def test_a_reader_that_goes_away_is_no_error_worth_a_traceback() -> None:
    command = f"{sys.executable} -m simgpt machines frontier | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to write to")
def test_an_answer_that_a_full_disk_does_not_take() -> None:
    command = [sys.executable, "-m", "simgpt", *PREDICT.split(), "--plan", "z=8"]
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert said.returncode == 5
    assert said.stderr == "simgpt: cannot write the answer: No space left on device\n"
