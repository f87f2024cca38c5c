"""Faults amid a sweep: short writes, no memory, a kill while a file comes into being."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simgpt.studies.errors import WorkersError
from simgpt.studies.inputs import inputs_of
from simgpt.studies.journal import RESULTS, STUDY
from simgpt.studies.study import Study
from simgpt.studies.sweep_rows import SweepResources, sweep_into
from simulator.predict import Prediction, predict
from tests.simgpt.studies.processes import write_study
from tests.simgpt.studies.worlds import SMALL, study

WATCHED = """
import os, sys

def heard(event, args):
    if event == "open" and isinstance(args[0], str) and args[0].endswith("/study.json"):
        if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            print("written in place")
    if event == "os.rename" and str(args[1]).endswith("/study.json"):
        with open(args[0], encoding="utf-8") as file:
            print(file.read())

sys.addaudithook(heard)
from simgpt.cli import cli
cli.main(["sweep", sys.argv[1], "-o", sys.argv[2]], standalone_mode=False)
"""


def four_rows() -> Study:
    return study(SMALL, sweep={"layers": [1, 2, 3, 4]})


def swept(folder: Path) -> bytes:
    asked = four_rows()
    sweep_into(folder, asked, inputs_of(asked), SweepResources(), lambda rows: None)
    return (folder / RESULTS).read_bytes()


def test_rows_that_the_system_takes_in_pieces_are_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = swept(tmp_path / "whole")
    written: list[int] = []

    def short(descriptor: int, data: bytes) -> int:
        written.append(write(descriptor, data[:7]))
        return written[-1]

    write = os.write
    monkeypatch.setattr(os, "write", short)
    assert swept(tmp_path / "pieces") == whole
    assert len(written) >= len(whole) / 7


def test_a_sweep_that_runs_out_of_memory_ends_and_makes_no_row_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third row may fit another time, on another machine: nothing is said about it."""
    whole = swept(tmp_path / "whole")
    calls: list[int] = []

    def third_is_too_large(*given: object, **more: object) -> Prediction:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return predict(*given, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("simulator.predict.predict", third_is_too_large)
        with pytest.raises(WorkersError):
            swept(tmp_path / "cut")
    kept = (tmp_path / "cut" / RESULTS).read_bytes()
    assert kept == b"".join(whole.splitlines(keepends=True)[:2])
    assert swept(tmp_path / "cut") == whole


def test_study_json_appears_whole_by_a_rename(tmp_path: Path) -> None:
    """So a sweep killed at any instant leaves either none or one that the next sweep can read."""
    folder = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(write_study(tmp_path, 1)), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert "written in place" not in done.stdout
    renamed, _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])
    assert renamed == json.loads((folder / STUDY).read_text(encoding="utf-8"))
    assert renamed["points"] == 6
