"""What `make demo` runs and names works."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.examples import slow
from tests.simgpt.face import Said, simgpt

ROOT = Path(__file__).resolve().parents[2]


def made(*words: str) -> str:
    """What make prints."""
    done = subprocess.run(
        ["make", *words, "VENV=env"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def commands() -> list[list[str]]:
    """The commands that the demo runs, then those that it names."""
    runs = made("-n", "demo", "-o", "env/.installed-run")
    ends = made("--eval", 'ends: ; @echo "$$SHOWN"', "ends")
    found = re.findall(r"^ *env/bin/simgpt (.*)$", f"{runs}\n{ends}", re.MULTILINE)
    return [shlex.split(line) for line in found]


def answered(number: int) -> Said:
    """The answer to one of them, with no warning beside it; a slow machine says how far it is."""
    said = simgpt(*commands()[number])
    progress = [line for line in said.err.splitlines() if line.startswith("predicting ")]
    assert (said.status, said.err.splitlines()) == (0, progress)
    return said


def test_the_demo_predicts_compares_runs_and_names_three_commands() -> None:
    first = [words[0] for words in commands()]
    assert first == ["predict", "validate", "run", "search", "why", "predict"]


@pytest.mark.parametrize("number", [0, 5, *slow(4)])
def test_the_demo_s_quick_commands_are_answered_without_a_warning(number: int) -> None:
    answered(number)


@pytest.mark.slow
def test_the_published_figure_stands_beside_a_prediction() -> None:
    """Of gpt-80b on 8,192 GCDs AxoNN's paper has 36.3 % of the peak."""
    said = answered(1)
    row = re.search(r"^axonn-weak-frontier-8192 .* % of peak +([\d.]+) +[\d.]+ ", said.out, re.M)
    assert row is not None
    assert row[1] == "36.3"
