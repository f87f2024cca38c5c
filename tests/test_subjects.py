"""Commits say what they do in one line of one form."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.subjects import faults, main

ROOT = Path(__file__).resolve().parent.parent
SINCE = "ea590ffa5de9eeb9f4b7ec51b10c50d85b1f64e4"  # those up to it were written before the rule


@pytest.mark.parametrize(
    "subject",
    [
        "tests: check what a message names, not how it says it",
        "bench-network: say fits and unknown devices in plain words",
        "api: embed /v1/tmp/x of the server",
        "search: pass each row once",
        "a: keep " + "b" * 64,
        "Merge branch 'main'",
        'Revert "tests: check"',
    ],
)
def test_a_subject_is_an_area_and_an_imperative(subject: str) -> None:
    assert faults(subject) == []


@pytest.mark.parametrize(
    "subject",
    [
        "Tests: check it",
        "check it",
        "tests check: it",
        "tests:check it",
        "tests: Check it",
        "tests: check it.",
        "tests: checked it",
        "tests: checks it",
        "tests: checking it",
        "a: keep " + "b" * 65,
        "tests: read /home/me/x",
        r"tests: read C:\x",
        "Merge branch 'main' of /home/me/simgpt",
        "",
    ],
)
def test_other_subjects_are_refused(subject: str) -> None:
    assert len(faults(subject)) == 1


def test_the_hook_reads_the_first_line_of_the_message(tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text("tests: check it\n\nIt lay in /home/me until now.\n", encoding="utf-8")
    assert main(str(message)) == 0
    message.write_text("It is checked\n\ntests: check it\n", encoding="utf-8")
    assert main(str(message)) == 1


def test_pre_commit_runs_the_hook_on_messages() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert "commit-msg" in config["default_install_hook_types"]
    (hook,) = (h for h in config["repos"][0]["hooks"] if h.get("stages") == ["commit-msg"])
    assert hook["entry"] == "python -m tests.subjects"


def test_every_commit_since_then_has_such_a_subject() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git history here")
    if _git("merge-base", "--is-ancestor", SINCE, "HEAD").returncode:
        pytest.skip("the history here is cut off")
    subjects = _git("log", "--format=%s", f"{SINCE}..HEAD").stdout.splitlines()
    assert {subject: found for subject in subjects if (found := faults(subject))} == {}


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
