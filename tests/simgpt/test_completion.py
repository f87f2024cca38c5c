"""Command lines are completed: names of models, machines and stacks where they are wanted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from simgpt.cli import COMMANDS, SECTIONS, cli
from simgpt.commands.shell.completion import VARIABLE
from tests.messages import assert_names
from tests.simgpt.face import simgpt


def offered(*words: str) -> list[tuple[str, str]]:
    """What is offered for the last word, and whether it is plain or makes the shell add files."""
    *before, last = words
    found = ShellComplete(cli, {}, "simgpt", VARIABLE).get_completions(before, last)
    return [(item.type, item.value) for item in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("pre",), [("plain", "predict")]),
        (("predict", "gpt-5"), [("file", "gpt-5"), ("plain", "gpt-5b"), ("plain", "gpt-50b")]),
        (("why", "tp", "-m", "FR"), [("file", "FR"), ("plain", "frontier")]),
        (("search", "tp", "--machine", "perl"), [("file", "perl"), ("plain", "perlmutter")]),
        (("predict", "tp", "--stack", "oth"), [("file", "oth"), ("plain", "other")]),
        (("validate", "host", "-m", "fron"), [("file", "fron"), ("plain", "frontier")]),
        (("run", "tp", "--plan", "pl"), [("file", "pl")]),
        (("models", "gpt-5"), [("file", "gpt-5"), ("plain", "gpt-5b"), ("plain", "gpt-50b")]),
        (("machines", "perl"), [("file", "perl"), ("plain", "perlmutter")]),
        (("stacks", "oth"), [("file", "oth"), ("plain", "other")]),
        (("sweep", "st"), [("file", "st")]),
        (("report", "wh"), [("file", "wh")]),
        (("predict", "tp", "--batch-t"), [("plain", "--batch-tokens")]),
        (("completion", "z"), [("plain", "zsh")]),
    ],
)
def test_a_word_is_completed_by_what_can_stand_there(
    words: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    assert offered(*words) == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_with_what_the_command_prints(tmp_path: Path) -> None:
    """As a shell does it: the printed code is run, and its function called on a line."""
    program = tmp_path / "simgpt"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m simgpt "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    script = f"""
        PATH={tmp_path}:$PATH; eval "$(simgpt completion bash)"
        COMP_WORDS=(simgpt stacks oth) COMP_CWORD=2
        _simgpt_completion simgpt 2> /dev/null; echo "${{COMPREPLY[@]}}"
    """
    words = ["bash", "--norc", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "other\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_code(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    said = simgpt("completion", shell)
    assert said.status == 0
    assert f"{VARIABLE}={shell}_complete" in said.out
    assert simgpt("completion").out == said.out


def test_a_shell_that_is_not_known_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    said = simgpt("completion")
    assert said.status == 2
    assert_names(said.sentence, "bash", "zsh", "fish")


def test_every_command_stands_in_one_section_of_the_help() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(COMMANDS)
