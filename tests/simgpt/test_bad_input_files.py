"""Files that hold nothing sensible, end nowhere or go nowhere: one sentence, and no harm done."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tracemalloc
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import pytest

import topologies
from tests.examples import one_in, slow
from tests.messages import assert_names
from tests.simgpt.face import Said, simgpt
from validation.network_validation import devices_per_node

PREDICT = "predict tiny-30k -m frontier -n 8 --plan z=8"
READERS = {
    "machine.toml": "machines {}",
    "machine.json": "predict tiny-30k -n 8 -m {}",
    "model.toml": "models {}",
    "plan.toml": "predict tiny-30k -n 8 -m frontier --plan {}",
    "plan.json": "search tiny-30k -m frontier -n 8 --batch 8 --plan {}",
    "study.toml": "sweep {} -o out",
    "answer.json": "report {} -o page.html",
    "network.json": "validate network --data {}",
    "kernels.csv": "validate kernels --data {}",
    "runs.csv": "validate published --data {}",
}
DOCUMENTS = [name for name in READERS if not name.endswith(".csv")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(name: str) -> str:
    said = simgpt(*READERS[name].format(name).split())
    assert said.status == 2
    assert said.sentence.startswith("simgpt: ")
    assert name in said.sentence
    assert not Path("out").exists()
    assert not Path("page.html").exists()
    return said.sentence


FAULTS = {  # in TOML and in JSON, and what is named beside the file
    "deep": ("x = " + "[" * 5000, "[" * 5000, "32"),
    "keys": ("a." * 5000 + "b = 1", '{"a":' * 5000 + "1" + "}" * 5000, "32"),
    "digits": ("x = " + "9" * 5000, '{"x": ' + "9" * 5000 + "}", ""),
    "nan": ("x = nan", '{"x": NaN}', "nan"),
    "bytes": ("x = '\udcff'", '{"x": "\udcff"}', "utf-8"),
    "surrogate": ("x = '\\ud800'\ny = \"\\ud800\"", '{"x": "\\ud800"}', ""),
}


@pytest.mark.parametrize(
    ("name", "fault"),
    [*product(DOCUMENTS, ["deep"]), *product(["machine.toml", "machine.json"], [*FAULTS][1:])],
)
def test_a_document_that_no_one_means(name: str, fault: str) -> None:
    toml, as_json, named = FAULTS[fault]
    text = toml if name.endswith(".toml") else as_json
    Path(name).write_bytes(text.encode(errors="surrogateescape"))
    assert_names(refused(name).lower(), *named.split())


@pytest.mark.parametrize("name", READERS)
def test_what_has_no_end_is_not_waited_for(name: str) -> None:
    os.mkfifo(name)
    refused(name)


@pytest.mark.parametrize("name", ["machine.toml", "network.json"])
@pytest.mark.parametrize("kind", ["device", "folder"])
def test_what_is_no_file_is_not_read(name: str, kind: str) -> None:
    if kind == "device":
        Path(name).symlink_to("/dev/zero")
    else:
        Path(name).mkdir()
    refused(name)


@pytest.mark.parametrize("name", [name for name in READERS if "answer" not in name])
def test_a_file_without_end_is_refused_by_its_size(name: str) -> None:
    with Path(name).open("wb") as file:
        file.truncate(2**27)  # of which no byte is on the disk
    assert_names(refused(name), "MiB")


@pytest.mark.slow
def test_a_report_of_millions_of_empty_rows_is_refused_before_they_are_made() -> None:
    Path("answer.json").write_text('{"rows":[' + "{}," * 4_500_000 + "{}]}")
    assert_names(refused("answer.json"), "4,194,304")
    Path("r.jsonl").write_text("{}\n" * 100_002)
    said = simgpt("report", "r.jsonl", "-o", "p.html")
    assert_names(said.sentence, "r.jsonl", "100,000")
    with Path("r.jsonl").open("wb") as file:  # of lines that would take GiB
        file.write(b"\n" * 2**27)
    tracemalloc.start()
    try:
        assert_names(simgpt("report", "r.jsonl", "-o", "p.html").sentence, "100,000")
        assert tracemalloc.get_traced_memory()[1] < 2**29
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", ["model", "machine"])
def test_a_name_with_a_nul_in_a_study(key: str) -> None:
    names = {"model": "tiny-30k", "machine": "host"} | {key: "a\\u0000.toml"}
    Path("study.toml").write_text("".join(f'{k} = "{v}"\n' for k, v in names.items()))
    said = simgpt("sweep", "study.toml")
    assert said.status == 2
    assert_names(said.sentence, key, "a\\x00.toml")


def test_a_plan_of_three_hundred_letters() -> None:
    said = simgpt(*["predict", "tiny-30k", "-m", "frontier", "-n", "8", "--plan"], "p" * 300)
    assert said.status == 2
    assert_names(said.sentence, "key=value")


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"rows": [None]}, "None"),
        ({"rows": [3]}, "3"),
        ({"rows": [[512, 2**30, None]]}, "seconds None"),
        ({"rows": [["512", 2**30, 1.0]]}, "devices 512"),
        ({"rows": [[1e12, 2**30, 1.0]]}, "devices 10,000,000"),
        ({"devices_per_node": "@SUM(1)"}, "devices_per_node @SUM(1)"),
        ({"nodes": [2]}, "nodes [2]"),
        ({"columns": [[], "bytes", "seconds"]}, "columns []"),
    ],
)
def test_measured_tables_of_the_wrong_kind(
    table: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validation.network_validation.devices_per_node", DEVICES_PER_NODE)
    name, first = _shipped_table()
    columns = {"columns": ["devices", "bytes", "seconds"], "rows": [[512, 2**30, 1.0]]}
    Path("network.json").write_text(json.dumps({name: {**first, **columns, **table}}))
    said = simgpt("validate", "network", "--data", "network.json")
    assert said.status == 2
    assert_names(said.sentence, name, *named.split())


DEVICES_PER_NODE = cache(devices_per_node)  # which reads all machines


@cache
def _shipped_table() -> tuple[str, dict[str, Any]]:
    from topologies.files.reading import shipped_text

    found = json.loads(shipped_text("validation", "data/network.json"))
    tables = found.get("tables", found)
    return next((n, t) for n, t in tables.items() if n.startswith("frontier_all_gather"))


OUTPUTS = {
    "answer": f"{PREDICT} -o kept",
    "trace": f"{PREDICT} --trace kept",
    "page": "report answer.json -o kept.html",
    "figures": "report answer.json --figures .",
    "picture": "machines dgx-h100 --figure kept.svg",
}


def _no_room(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.usefixtures("figures_left_out")
@pytest.mark.parametrize("what", one_in(2, OUTPUTS))
def test_a_full_disk_leaves_every_earlier_file_whole_and_ends_with_5(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validation.report.figures.style.DPI", 20)
    if "report" in OUTPUTS[what]:
        alone = ("predict", "tiny-30k", "-m", "host", "--plan", "dp=1", "--json")
        Path("answer.json").write_text(simgpt(*alone).out)
    assert simgpt(*OUTPUTS[what].split()).status == 0
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    monkeypatch.setattr("os.fsync", _no_room)
    said = simgpt(*OUTPUTS[what].split())
    _assert_no_room(said)
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def _assert_no_room(said: Said) -> None:
    """A command ended with 5 and the system's reason."""
    assert said.status == 5, said.err
    (sentence,) = [line for line in said.err.splitlines() if line.startswith("simgpt: ")]
    assert_names(sentence, os.strerror(errno.ENOSPC))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to write to")
@pytest.mark.parametrize("command", [f"{PREDICT} -o /dev/full", f"{PREDICT} --trace /dev/full"])
def test_a_full_device_ends_with_5(command: str) -> None:
    _assert_no_room(simgpt(*command.split()))


def test_an_answer_goes_into_a_pipe() -> None:
    words = [sys.executable, "-m", "simgpt", "models", "tiny-30k", "--json"]
    script = '"$@" -o >(cat >copy; touch over); until [ -e over ]; do sleep 0.05; done'
    done = subprocess.run(
        ["bash", "-c", script, "tp", *words],
        capture_output=True,
        check=True,
    )
    assert b"wrote /dev/fd/" in done.stderr
    assert json.loads(Path("copy").read_text())["name"] == "tiny-30k"


def test_an_empty_name_of_a_machine_is_no_machine() -> None:
    for words in (("validate", "host"), ("run", "tiny-30k", "--plan", "dp=1")):
        said = simgpt(*words, "-m", "")
        assert said.status == 2
        assert_names(said.sentence, '""')


def test_an_answer_for_stdout_is_added_to_the_file_that_it_is_redirected_to() -> None:
    Path("log").write_text("old\n")
    command = [sys.executable, "-m", "simgpt", "models", "tiny-2m", "-o", "/dev/stdout"]
    with Path("log").open("a") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.DEVNULL, timeout=60, check=True)
    assert Path("log").read_text().startswith("old\ntiny-2m")


def test_a_folder_is_refused_as_a_file_to_write_before_anything_else_is_looked_at() -> None:
    Path("folder").mkdir()
    said = simgpt("predict", "no-model", "-o", "folder")
    assert said.status == 2
    assert_names(said.err, "--output", "folder")
    assert "no-model" not in said.err


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_a_link_to_itself_is_a_sentence(option: str) -> None:
    Path("loop").symlink_to("loop")
    said = simgpt(*PREDICT.split(), "-o", "a", "--trace", "b", option, "loop")
    assert said.status == 2
    assert_names(said.err.splitlines()[-1], "loop", os.strerror(errno.ELOOP))


def test_a_machine_too_large_to_draw_is_refused_before_anything_is_written() -> None:
    text = Path(topologies.__file__).with_name("machines").joinpath("frontier.toml").read_text()
    assert "switches_per_group = 32" in text
    large = text.replace("switches_per_group = 32", "switches_per_group = 9999")
    Path("large.toml").write_text(large)
    said = simgpt("machines", "large.toml", "--figure", "a.svg", "-o", "a.txt")
    assert said.status == 2
    assert_names(said.sentence, "frontier", "769,923")  # 77 groups of 9,999
    assert not list(Path().glob("a*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to write to")
@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("models nope 2>/dev/full", 2, ""),
        ("models 2>&- | grep -c gpt-640b", 0, "1\n"),
        (f"{PREDICT} --sweep zero=0,1 -o x.json 2>&-", 0, ""),
        *slow(
            ("models nope 2>&-", 2, ""),
            (f"{PREDICT} -o x.json 2>/dev/full", 0, ""),
            ("models -o x.json >&- 2>/dev/null", 0, ""),
        ),
    ],
)
def test_what_nobody_can_hear_changes_no_exit_status(command: str, status: int, said: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m simgpt {command}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, said, "")
    assert Path("x.json").exists() == ("x.json" in command)


def test_an_answer_for_a_closed_stdout_is_a_failure() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m simgpt models 2>&1 >&-"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout.count("\n") == 1
    assert_names(done.stdout, "simgpt", "stdout")
