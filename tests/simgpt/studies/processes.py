"""Sweeps as processes of their own, to be killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 60.0
LONG = """
model = "tiny-30k"
machine = "host"
devices = 2
batch = 4
plan = "dp=rest,precision=fp32"
[sweep]
layers = {layers}
plan.x = [1, 2, 3]
zero = [0, 1]
"""


def write_study(folder: Path, layers: int) -> Path:
    """A study of 6 rows for each number of layers, some milliseconds each."""
    path = folder / "long.toml"
    path.write_text(LONG.format(layers=list(range(1, layers + 1))), encoding="utf-8")
    return path


def begin(study: Path, folder: Path, *words: str, own_group: bool = False) -> subprocess.Popen[str]:
    """Start a sweep into the folder; in a group of processes of its own, as a terminal does."""
    command = [sys.executable, "-m", "simgpt", "sweep", str(study), "-o", str(folder), "--json"]
    return subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=own_group,
    )


def finish(sweep: subprocess.Popen[str]) -> str:
    """Wait until the sweep is through; what it said on stdout. On stderr it says at most how many
    rows were there."""
    out, err = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 0
    assert err.count("\n") <= 1, err
    assert not err or re.search(r"\b\d+ of \d+\b", err), err
    json.loads(out)
    return out


def wait_for_rows(sweep: subprocess.Popen[str], results: Path, rows: int) -> None:
    """Wait until so many rows are in the file, or the sweep is through."""
    end = time.monotonic() + PATIENCE_S
    while sweep.poll() is None and count(results) < rows:
        assert time.monotonic() < end, f"{count(results)} of {rows} rows"
        time.sleep(0.001)


def count(results: Path) -> int:
    """Whole rows in the file."""
    return results.read_bytes().count(b"\n") if results.exists() else 0


def children(parent: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if entry.name.isdigit() and int(after_name[1]) == parent and after_name[0] != "Z":
            found.append(int(entry.name))
    return found


def runs(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"
