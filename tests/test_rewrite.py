"""What tests compare is not rewritten where they are to find differences."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.examples import one_in
from tests.test_house import ROOT


@pytest.mark.parametrize(("ci", "status"), one_in(2, [("true", 4), ("", 0)]))
def test_golden_files_are_not_rewritten_in_ci(ci: str, status: int) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", __file__],
        cwd=ROOT,
        env={**os.environ, "SIMGPT_REWRITE": "1", "CI": ci},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == status, found.stdout + found.stderr
    assert ("SIMGPT_REWRITE rewrites" in found.stdout + found.stderr) == (status == 4)
