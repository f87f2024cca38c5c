"""The README shows what its commands print: `SIMGPT_REWRITE=1` writes their output anew.

A block `<!-- output: COMMAND -->` is followed by the command and its output, and compared;
`<!-- slow: COMMAND -->` likewise, but only among the slow tests; `<!-- measured: COMMAND -->`
likewise, but what was measured once on a machine is only kept.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from simgpt.tables import percent
from validation.published import validate_published

SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]
README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(
    r"<!-- (output|slow|measured): (simgpt .*?) -->\n(?:```text\n.*?```\n)?", re.DOTALL
)


def shown(command: str) -> str:
    """A command and what it prints, as the README shows it."""
    words = [sys.executable, *shlex.split(f"-m {command}")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    lines = (line.rstrip() for line in f"$ {command}\n{done.stdout}".strip().splitlines())
    return "```text\n" + "\n".join(lines) + "\n```\n"


def blocks(kind: str) -> list[str]:
    found = BLOCK.finditer(README.read_text(encoding="utf-8"))
    return [match[2] for match in found if match[1] == kind]


def rewrite(command: str) -> None:
    def replacement(match: re.Match[str]) -> str:
        head = match[0].split("\n", 1)[0]
        return f"{head}\n{shown(command)}" if match[2] == command else match[0]

    README.write_text(BLOCK.sub(replacement, README.read_text(encoding="utf-8")), "utf-8")


@pytest.mark.parametrize(
    "command",
    [*blocks("output"), *(pytest.param(name, marks=SLOW) for name in blocks("slow"))],
)
def test_the_readme_shows_what_the_command_prints(command: str) -> None:
    if os.environ.get("SIMGPT_REWRITE"):
        rewrite(command)
    assert shown(command) in README.read_text(encoding="utf-8")


def test_two_sources_of_the_readme_are_as_predicted_now() -> None:
    """What the slow test above compares whole, for the sources that share one machine."""
    report = validate_published(None, ["2205.05198", "2104.04473"])
    rows = [" ".join(line.split()) for line in README.read_text(encoding="utf-8").splitlines()]
    for name, found in report.by("source").items():
        assert found.mape is not None and found.bias is not None
        mape, bias = percent(found.mape), percent(found.bias, sign=True)
        figures = f" {found.rows} {mape} {bias} "
        assert any(row.startswith(name[:20]) and figures in row for row in rows)


@pytest.mark.parametrize("command", blocks("measured"))
def test_the_readme_shows_what_was_measured(command: str) -> None:
    if os.environ.get("SIMGPT_REWRITE") == "measured":
        rewrite(command)
    assert f"$ {command}\n" in README.read_text(encoding="utf-8")
