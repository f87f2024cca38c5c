"""The command line as tests call it, and golden files that are compared whole."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from simgpt.cli import main

GOLDEN = Path(__file__).parent / "golden"
REWRITE = "SIMGPT_REWRITE"


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said where."""

    status: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line on stderr of a command that refuses its input."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert self.out == ""
        return lines[0]


def simgpt(*words: str) -> Said:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "argv", ["simgpt", *words]),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return Said(int(end.value.code or 0), out.getvalue(), err.getvalue())


@cache
def asked(*words: str) -> Said:
    """What a question is answered, found once for the tests of a process: it reads and writes no
    file, and no test changes what it depends on."""
    return simgpt(*words)


def assert_golden(name: str, text: str) -> None:
    """Compare a text with its golden file, or write the file if SIMGPT_REWRITE is set."""
    path = GOLDEN / name
    if os.environ.get(REWRITE):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{REWRITE}=1 rewrites {path.name}"
