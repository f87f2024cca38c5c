"""Progress goes to stderr alone: it moves in a terminal, and is a rare plain line elsewhere."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time

import pytest

from simgpt.progress import EVERY_S, Ticker

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
    assert said.getvalue() == f"sweeping: {EVERY_S:.0f} of 1,200\nsweeping: 60 of 1,200\n"


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
    assert said.getvalue() == "sweeping: 0 of 3\nsweeping: 0 of 3 after 60 s\n"


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
