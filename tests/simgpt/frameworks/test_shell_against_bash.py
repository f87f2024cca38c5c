"""What the reader of scripts makes of an idiom is what bash makes of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from simgpt.frameworks.scripts.shell import read_script

BASH = shutil.which("bash")
TAKES = 'torchrun() { printf "%s\\n" "$@"; }; srun() { "$@"; }; export -f torchrun\n'
FILES = Path(__file__).parent / "files"
CONDITIONS = (FILES / "conditions.sh").read_text().splitlines()
SCRIPTS = (FILES / "idioms.sh").read_text().split("#%%")[2:]


def of_bash(script: str) -> list[str]:
    """The words that the last program of a script is started with."""
    assert BASH is not None
    plain = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [BASH, "--norc", "-c", TAKES + script],
        capture_output=True,
        text=True,
        env=plain,
        check=False,
    )
    return done.stdout.rpartition("t.py\n")[2].splitlines()


@pytest.mark.skipif(BASH is None, reason="bash is what is asked")
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_holds_where_it_does_in_bash(condition: str) -> None:
    script = f"A=llama2-70b T=8 P=llama Q='*b'\nif {condition}; then X=1; else X=2; fi\n"
    script += "torchrun t.py --x $X"
    assert list(read_script(script, {}).arguments) == of_bash(script)


@pytest.mark.skipif(BASH is None, reason="bash is what is asked")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_program_gets_the_words_that_bash_gives_it(script: str) -> None:
    assert list(read_script(script, {}).arguments) == of_bash(script)
