"""Wrong input gets one sentence and its exit status, and never a traceback."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click import UsageError

from executor.launching.launch_env import RankInfo
from simgpt.running.launched import ranks_of
from tests.messages import assert_names, names
from tests.simgpt.face import simgpt

PREDICT = "predict gpt-5b -m frontier -n 8"
BENCH = "bench-network -m frontier"
RUN = "run tiny-30k --no-predict"
TOO_MANY = 10**8


@pytest.mark.parametrize(
    ("status", "command", "named"),
    [
        (2, "frobnicate", "frobnicate"),
        (2, "predict", "MODEL"),
        (2, "predict nope -m frontier", "nope"),
        (2, "predict gpt-5b -m fronteir -n 8", "fronteir frontier"),
        (2, "predict gpt-5b", "-m"),
        (2, "predict gpt-5b -m frontier", "-n"),
        (2, f"{PREDICT} --batch 1e3", "--batch 1e3"),
        (2, f"{PREDICT} --plan Makefile", "Makefile .toml .json"),
        (2, f"{PREDICT} -o same.txt --trace ./same.txt", "-o --trace same.txt"),
        (2, f"{PREDICT} --output=", "--output"),
        (2, f"{PREDICT} -o {'a' * 300}/x.json", "--output x.json"),
        (2, "machines alps --figure a.svg -o a-interconnect.svg", "-o --figure a-interconnect.svg"),
        (2, f"{PREDICT} --sweep z=1,2,1", "sweep.z 1"),
        (2, "search gpt-5b -m frontier -n 8 --batch 8 --time-limit soon", "--time-limit soon"),
        (2, "predict gpt-5b -m frontier -n 0", "-n 0"),
        (2, f"{PREDICT} --batch 0", "--batch 0"),
        (2, f"{PREDICT} --batch-tokens 100", "100 2048"),
        (2, f"{PREDICT} --batch-tokens 16384 --batch 8", "--batch --batch-tokens"),
        (2, f"{PREDICT} --tokens 12x", "--tokens 12x 300e9"),
        (2, f"{PREDICT} --plan microbatch=3", "microbatch mbs"),
        (2, f"{PREDICT} --plan tp=abc", "tp=abc"),
        (2, f"{PREDICT} --plan tp=1,tp=2", "tp"),
        (2, f"{PREDICT} --plan tp=0", "tp=0 1"),
        (2, f"{PREDICT} --plan recompute=half", "recompute=half full per_op full:N"),
        (3, "predict tiny-30k -m frontier --plan tp=3", "heads=8 ffn=128 2"),
        (3, f"{PREDICT} --batch 7", "batch=7 8"),
        (3, f"{PREDICT} --batch 16 --plan dp=8,mbs=3", "mbs=3 batch=16 1 2"),
        (3, f"{PREDICT} --plan dp=4", "4 8"),
        (3, f"{PREDICT} --plan ep=8", "1 8"),
        (3, "predict gpt-5b -m frontier -n 1000000", "frontier 78848"),
        (3, "search gpt-5b -m frontier -n 1000001 --batch 64", "1000001 frontier 78848"),
        (2, f"{PREDICT} --set software.compute_share=2", "software.compute_share 2 0.02"),
        (2, f"{BENCH} --sizes a:b", "--sizes a GiB"),
        (2, f"{BENCH} --sizes 2GB:1GB", "--sizes 2GB:1GB"),
        (2, f"{BENCH} --sizes 0B", "--sizes 0B 1MiB:1GiB"),
        (2, f"{BENCH} --devices 64:16", "--devices 64:16"),
        (2, f"{BENCH} --devices a", "--devices a 16:1024"),
        (2, f"{BENCH} --algorithm foo", "--algorithm foo all_gather auto ring"),
        (2, f"{PREDICT} --set device.memory", "--set device.memory key=value"),
        (2, f"{PREDICT} --set device.memory=3", "device.memory 3 GiB"),
        (2, f"{PREDICT} --set device.mem=3", "device.mem device.memory"),
        (2, f"{PREDICT} --set nodes=1.5", "nodes 1.5"),
        (2, f"{PREDICT} -o /nowhere/x", "-o /nowhere"),
        (2, f"{PREDICT} --trace /nowhere/x", "--trace /nowhere"),
        (2, f"{PREDICT} --sweep z", "--sweep z key=v1,v2"),
        (2, f"{PREDICT} --sweep z=", "--sweep z="),
        (2, f"{PREDICT} --sweep z=1,two", "z=two"),
        (2, f"{PREDICT} --sweep z=1 --sweep z=2", "--sweep z"),
        (2, f"{PREDICT} --sweep zet=1", "zet"),
        (2, f"{PREDICT} --sweep plan=tp=1,z=2", "--sweep plan="),
        (2, f"{PREDICT} --sweep machine=alps,mars", "mars"),
        (2, f"{PREDICT} --sweep device.lunch=1us", "device.lunch device.launch"),
        (2, f"{PREDICT} --sweep z=1 --compute measured", "compute measured"),
        (2, "sweep", "STUDY"),
        (2, "sweep x.toml --workers 0", "--workers 0"),
        (2, "sweep x.toml --limit 0", "--limit 0"),
        (2, "sweep x.toml --timeout nan", "--timeout nan"),
        (2, "machines nope", "nope"),
        (2, f"{RUN} --ranks 0", "--ranks 0"),
        (2, f"{RUN} --lr nan", "--lr nan"),
        (2, f"{RUN} --timeout inf", "--timeout inf"),
        (3, f"{RUN} --plan dp=2 --ranks 3", "2 3"),
        (5, f"{RUN} --plan tp={TOO_MANY}", f"{TOO_MANY}"),
        (2, "validate host -m frontier", "frontier -m"),
        (2, "validate device -m frontier", "frontier -m"),
        (2, "validate host --tolerance nan", "--tolerance nan"),
        (2, "calibrate -o /nowhere/x.json", "-o /nowhere"),
    ],
)
def test_a_wrong_word_on_the_command_line(status: int, command: str, named: str) -> None:
    said = simgpt(*command.split())
    assert said.status == status
    assert said.sentence.startswith("simgpt: ")
    assert_names(said.sentence, *named.split())


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (f"{PREDICT} -o {'a' * 300}", errno.ENAMETOOLONG),
        ("sweep /nowhere/x.toml", errno.ENOENT),
        ("sweep .", errno.EISDIR),
        (f"{RUN} --data /nowhere/x", errno.ENOENT),
        (f"{RUN} --data .", errno.EISDIR),
    ],
)
def test_a_file_that_the_system_refuses_is_said_with_the_systems_reason(
    command: str, number: int
) -> None:
    said = simgpt(*command.split())
    assert said.status == 2
    assert_names(said.sentence, os.strerror(number))
    assert command.rpartition(" ")[2][:30] in said.sentence  # of a long name its ends


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


STUDY = 'model = "tiny-30k"\nmachine = "host"\nplan = "dp=1,precision=fp32"\n'
STUDIES = {
    "garbage = = 1": "study.toml TOML",
    "model = 3": "model 3",
    'model = "tiny-30k"': "machine",
    STUDY + "machines = 3": "machines study.toml",
    STUDY + "sweep = 3": "sweep 3 [sweep]",
    STUDY + "[sweep]\nx = []": "sweep.x",
    STUDY + "[scaling]\nkind = 3": "scaling.kind 3 weak strong",
    STUDY + '[scaling]\nkind = "strong"\ndevices = [1, 2, 1]': "scaling.devices 1",
    STUDY + "[set]\nplan.zero = 'many'": "zero many",
    STUDY.replace("host", "mars"): "mars",
    STUDY.replace("host", "mars.toml"): "mars.toml",
    STUDY.replace("tiny-30k", "tiny.toml"): "tiny.toml",
}


@pytest.mark.parametrize("text", STUDIES)
def test_a_malformed_study_file(text: str, tmp_path: Path) -> None:
    path = _file(tmp_path, "study.toml", text)
    said = simgpt("sweep", path, "-o", str(tmp_path / "out"))
    assert said.status == 2
    assert_names(said.sentence, *STUDIES[text].split())
    assert not (tmp_path / "out").exists()


def test_a_changed_study_in_the_same_folder(tmp_path: Path) -> None:
    words = ("sweep", str(tmp_path / "study.toml"), "-o", str(tmp_path / "out"))
    _file(tmp_path, "study.toml", STUDY)
    assert simgpt(*words).status == 0
    _file(tmp_path, "study.toml", STUDY + "devices = 1")
    said = simgpt(*words)
    assert said.status == 2
    assert_names(said.sentence, str(tmp_path / "out"), "devices")


def test_a_sweep_of_which_nothing_can_run_ends_with_3(tmp_path: Path) -> None:
    path = _file(tmp_path, "study.toml", STUDY + "[sweep]\nx = [3, 5]")
    said = simgpt("sweep", path, "-o", str(tmp_path / "out"))
    assert (said.status, said.err) == (3, "")
    rows = json.loads(simgpt("sweep", path, "-o", str(tmp_path / "out"), "--json").out)["rows"]
    assert [row["prediction"] for row in rows] == [None, None]


def test_a_failing_simulator_is_a_row_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of a kind")

    monkeypatch.setattr("simulator.predict.predict", broken)
    path = _file(tmp_path, "study.toml", STUDY)
    said = simgpt("sweep", path, "-o", str(tmp_path / "out"))
    assert said.status == 1
    assert_names(said.out, "ZeroDivisionError")
    assert_names(said.err, "1")


@pytest.mark.parametrize(
    ("command", "name", "content"),
    [
        *(("predict tiny-30k -m frontier --plan {}", *file) for file in PLANS.items()),
        *(("predict {} -m frontier --plan dp=1", *file) for file in MODELS.items()),
        *(("predict tiny-30k -m {} --plan dp=1", *file) for file in MACHINES.items()),
    ],
)
def test_a_malformed_file(command: str, name: str, content: str, tmp_path: Path) -> None:
    said = simgpt(*command.format(_file(tmp_path, name, content)).split())
    assert (said.status, said.sentence[:8]) == (2, "simgpt: ")


@pytest.mark.parametrize("command", ["predict tiny-30k -m {} --plan dp=1", "run tiny-30k -m {}"])
@pytest.mark.parametrize("name", ["missing.toml", "folder.toml"])
def test_a_file_that_cannot_be_read(command: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    said = simgpt(*command.format(tmp_path / name).split())
    assert said.status == 2
    assert_names(said.sentence, str(tmp_path / name))


def _file(folder: Path, name: str, content: str) -> str:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return str(path)


def test_a_text_shorter_than_a_sequence(tmp_path: Path) -> None:
    said = simgpt(*RUN.split(), "--data", _file(tmp_path, "short.txt", "hi"))
    assert said.status == 2
    assert_names(said.sentence, "2", "tiny-30k", "17")


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
    assert_names(said.sentence, "torch", "simgpt[run]")


HOME = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "status", "named"),
    [
        ({"RANK": "0"}, 5, "RANK WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, 5, "WORLD_SIZE RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, 5, "MASTER_ADDR"),
        ({**HOME, "RANK": "one", "WORLD_SIZE": "2"}, 5, "RANK=one"),
        ({**HOME, "RANK": "2", "WORLD_SIZE": "2"}, 5, "RANK=2 WORLD_SIZE=2"),
        ({**HOME, "RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "no"}, 5, "MASTER_PORT=no"),
        ({"SLURM_PROCID": "x", "SLURM_NTASKS": "2"}, 5, "SLURM_PROCID=x"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "0"}, 5, "SLURM_NTASKS=0"),
        ({**HOME, "RANK": "0", "WORLD_SIZE": "2"}, 2, "--ranks 3 2"),
    ],
)
def test_a_broken_launch_environment(
    environment: dict[str, str], status: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = simgpt(*RUN.split(), "--ranks", "3")
    assert said.status == status
    assert_names(said.sentence, *named.split())


@pytest.mark.parametrize(
    ("wanted", "launched", "ranks"), [(3, None, 3), (None, None, None), (None, 4, 4), (4, 4, 4)]
)
def test_there_are_as_many_ranks_as_a_launcher_started_or_else_as_many_as_asked_for(
    wanted: int | None, launched: int | None, ranks: int | None
) -> None:
    assert ranks_of(wanted, None if launched is None else RankInfo(0, launched, 0)) == ranks


@pytest.mark.parametrize("wanted", [1, 3, 5])
def test_a_number_of_ranks_that_no_launcher_started_is_refused(wanted: int) -> None:
    with pytest.raises(UsageError, check=names(f"--ranks {wanted}", "4")):
        ranks_of(wanted, RankInfo(0, 4, 0))


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMGPT_CACHE", "/dev/null/cache")
    said = simgpt("run", "tiny-30k")
    assert said.status == 5
    assert_names(said.err.splitlines()[-1], "--no-predict")


PLAN_TOO_LARGE = ("predict", "gpt-175b", "-m", "frontier", "--plan", "dp=1")


def test_a_plan_that_does_not_fit_is_answered_and_ends_with_3() -> None:
    said = simgpt(*PLAN_TOO_LARGE)
    assert said.status == 3
    assert said.err.strip() in " ".join(said.out.split())
    record = json.loads(simgpt(*PLAN_TOO_LARGE, "--json").out)
    assert (record["memory"]["fits"], record["remedy"]) == (False, said.err.strip())


def test_why_begins_with_a_plan_that_does_not_fit() -> None:
    small = ("-m", "host", "--set", "device.memory=1 MiB")
    said = simgpt("why", "tiny-30k", *small, "--plan", "dp=1", "--batch", "64")
    assert said.status == 3
    first = " ".join(said.out.partition("\n\n")[0].split())
    assert first.endswith(said.err.strip())


@pytest.mark.parametrize(
    ("machine", "plan", "named", "unnamed"),
    [
        ("48x8xH100", "dp=rest", "-n dp=8 384 48x8xh100", ""),
        ("48x8xH100", "tp=2,pp=2,dp=rest", "-n 384 48x8xh100", "=8"),
        ("dgx-h100", "tp=2,dp=rest", "-n", "=8 dgx-h100"),
    ],
)
def test_the_devices_that_rest_fills_are_asked_for_with_those_of_the_machine(
    machine: str, plan: str, named: str, unnamed: str
) -> None:
    said = simgpt("predict", "gpt-5b", "-m", machine, "--plan", plan)
    assert (said.status, said.out) == (2, "")
    assert_names(said.sentence, *named.split())
    assert [word for word in unnamed.split() if word in said.sentence] == []


@pytest.mark.parametrize(
    ("machine", "nics"),
    [
        ("2x8xH100", "8"),
        ("2x8xH100,4xnic", "4"),
        ("2x8xH100:pytorch", "8"),
        ("2x8xH100,8xNDR", ""),
        ("1x8xH100", ""),
        ("dgx-h100", ""),
    ],
)
def test_nics_that_a_machines_parts_leave_out_are_named(machine: str, nics: str) -> None:
    said = simgpt("predict", "tiny-2m", "-m", machine, "--plan", "dp=8", "--batch", "8")
    lines = [line for line in said.out.splitlines() if "NIC" in line]
    assert len(lines) == bool(nics)
    for line in lines:
        assert_names(line, "-m", nics, "400 Gbit/s")


def test_no_command_at_all_shows_the_help_and_ends_with_2() -> None:
    said = simgpt()
    assert (said.status, said.out) == (2, "")
    *page, last = said.err.splitlines()
    assert any(line.split()[:1] == ["predict"] for line in page)
    assert_names(last, "simgpt --help")


def test_an_interrupt_ends_with_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simgpt.step.Sources.model", interrupted)
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
    assert_names(said.stderr, os.strerror(errno.ENOSPC))
    assert said.stderr.count("\n") == 1
