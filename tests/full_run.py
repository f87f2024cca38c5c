"""Notes when all tests last passed, and on what: `python -m tests.full_run JUNIT.xml NOTE.json`.

`make test-all` runs it once pytest has ended without a failure.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree


def counts(report: str) -> dict[str, Any]:
    """How many tests of a JUnit report passed and were skipped, and the seconds they took.

    A ValueError where one failed or none ran.
    """
    suites = ElementTree.fromstring(report).iter("testsuite")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    seconds = 0.0
    for suite in suites:
        seconds += float(suite.get("time", 0))
        for key in totals:
            totals[key] += int(suite.get(key, 0))
    if totals["failures"] or totals["errors"] or totals["tests"] == totals["skipped"]:
        raise ValueError(f"not all tests passed: {totals}")
    passed = totals["tests"] - totals["skipped"]
    return {"passed": passed, "skipped": totals["skipped"], "seconds": round(seconds)}


def machine() -> dict[str, Any]:
    """What the tests ran on."""
    return {
        "cores": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "gpu": "none used: tests marked gpu are not among them",
    }


def main(report: str, note: str) -> None:
    """Write the note of a report."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    found = {
        "command": "make test-all",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        **counts(Path(report).read_text(encoding="utf-8")),
        "machine": machine(),
    }
    Path(note).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
