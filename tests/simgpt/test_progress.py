"""Progress goes to stderr alone: it moves in a terminal, and is a rare plain line elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from simgpt.progress import EVERY_S, Ticker, _progress
from tests.messages import assert_names
from tests.simgpt.face import simgpt

PATIENCE_S = 60
MOVING = """
from simgpt.progress import Ticker
with Ticker() as ticker:
    ticker("measuring [all]")
    ticker("sweeping", done=3, of=7)
print("the answer")
"""


def test_elsewhere_a_line_is_said_every_thirty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    said, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr("simgpt.progress.time.monotonic", lambda: clock[0])
    with Ticker() as ticker:
        for second in range(75):
            clock[0] = 100.0 + second
            ticker("sweeping", done=second, of=1200)
    assert_lines(
        said.getvalue().splitlines(),
        ("sweeping", f"{EVERY_S:.0f}", "1,200", "20 min"),
        ("sweeping", "60", "1,200", "19 min"),
    )


def test_elsewhere_what_takes_long_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr("simgpt.progress.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("simgpt.progress.LOOK_S", 0.001)
    with Ticker() as ticker:
        ticker("sweeping", done=0, of=3)
        for lines in (1, 2):
            clock[0] += EVERY_S
            while said.getvalue().count("\n") < lines:
                time.sleep(0.001)
    found = said.getvalue().splitlines()
    assert_lines(found, ("sweeping", "0", "3"), ("sweeping", "0", "3", "60 s"))


def assert_lines(lines: list[str], *named: tuple[str, ...]) -> None:
    """Each line names its words, and no other number."""
    for line, words in zip(lines, named, strict=True):
        assert_names(line, *words)
        assert len(re.findall(r"\d[\d,.]*", line)) == sum(any(map(str.isdigit, w)) for w in words)


def said_after(
    monkeypatch: pytest.MonkeyPatch, seconds: float, *calls: dict[str, Any]
) -> list[str]:
    """The lines of a ticker that is called at first, and after every so many seconds again."""
    said, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr("simgpt.progress.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("simgpt.progress.LOOK_S", 1000.0)
    with Ticker() as ticker:
        for call in calls:
            ticker("working", **call)
            clock[0] += seconds
    return said.getvalue().splitlines()


def test_what_was_done_earlier_does_not_count_for_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = [{}, {"done": 900, "of": 1000}, {"done": 910, "of": 1000}]
    lines = said_after(monkeypatch, 40.0, *calls)
    assert_lines(lines, ("working", "900", "1,000"), ("working", "910", "1,000", "6 min"))


def test_other_work_has_a_pace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [{"done": 0, "of": 2}, {"done": 1, "of": 2}, {"done": 0, "of": 2}, {"done": 1, "of": 2}]
    lines = said_after(monkeypatch, 30.0, *calls)
    assert_lines(lines, ("1", "2", "30 s"), ("0", "2"), ("1", "2", "30 s"))


def test_where_only_a_share_is_known_the_pace_is_the_share_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [{"share": 0.0}, {"share": 0.25}, {"share": 1.0}]
    assert_lines(said_after(monkeypatch, 50.0, *calls), ("2 min",), ("100 s",))


def test_a_limit_is_said_where_nothing_else_is_known_or_it_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [{"share": 0.5, "at_most_s": 99.0}, {"share": 0.6, "at_most_s": 59.0}]
    ended = {"share": 1.0, "at_most_s": 29.0}
    assert_lines(said_after(monkeypatch, 30.0, *calls, ended), ("59 s",), ("60 s", "29 s"))


def every_line(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What a command says on stderr that says every message there is."""
    monkeypatch.setattr("simgpt.progress.EVERY_S", 0.0)
    return simgpt(*words).err.splitlines()


@pytest.mark.slow
def test_a_search_says_how_long_bounding_the_space_takes_and_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("search", "tiny-1m", "-m", "perlmutter", "-n", "16", "--batch", "64")
    alone = ("--workers", "1", "--time-limit", "7000")
    lines = every_line(monkeypatch, *words, "--plan", "pp=1,y=1,overlap=all,zero=1", *alone)
    assert any(re.search(r"\b[\d.]+ %.* [\d.]+ (s|min)\b", line) for line in lines), lines
    assert_names(lines[-1], "1.9 h")


def test_a_sweep_that_goes_on_tells_the_time_left_from_its_own_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study, rows = tmp_path / "study.toml", tmp_path / "rows"
    table = "model = 'tiny-30k'\nmachine = 'host'\ndevices = 2\nbatch = 4\n"
    study.write_text(f"{table}[sweep]\nzero = [0, 1, 2, 3]\n", encoding="utf-8")
    words = ("sweep", str(study), "-o", str(rows))
    whole = every_line(monkeypatch, *words)
    assert any(re.search(r"\b1 of 4\b.* \d+ s\b", line) for line in whole)
    kept = (rows / "results.jsonl").read_bytes().splitlines(keepends=True)
    (rows / "results.jsonl").write_bytes(b"".join(kept[:2]))
    rest = [line for line in every_line(monkeypatch, *words) if ": 2 of 4" in line]
    assert [line.partition(" of ")[2] for line in rest] == ["4"]


def test_in_a_terminal_pieces_that_take_minutes_have_a_pace_too() -> None:
    shown, clock = _progress(), [100.0]
    shown.get_time = lambda: clock[0]
    for done in (1, 2, 3):
        shown.update(shown.task_ids[0], completed=done, total=13)
        clock[0] += 120.0
    assert shown.tasks[0].time_remaining == 1200


def test_what_is_over_in_a_moment_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Ticker() as ticker:
        ticker("measuring")
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_it_moves_on_stderr_and_stdout_is_the_answer_s() -> None:
    here, there = pty.openpty()
    moving = subprocess.Popen(
        [sys.executable, "-c", MOVING], stdout=subprocess.PIPE, stderr=there, text=True
    )
    os.close(there)
    out, _ = moving.communicate(timeout=PATIENCE_S)
    shown = os.read(here, 1 << 16).decode()
    os.close(here)
    assert (moving.returncode, out) == (0, "the answer\n")
    assert "sweeping" in shown
    assert "3/7" in shown
    assert "/?" not in shown
