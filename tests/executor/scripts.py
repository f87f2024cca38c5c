"""Shell scripts in the place of ranks: quick to start, and they end or hang as they are told."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from executor.launching.rank_processes import RankProcess

SPIN = f"exec {sys.executable} -c 'while True: pass'"
SLEEP = "exec sleep 1000"


@contextmanager
def acting(folder: Path, *scripts: str) -> Iterator[list[RankProcess]]:
    """A rank for each script, from 0; what still runs in the end is killed."""
    ranks = [_begin(rank, script, folder / f"stderr.{rank}") for rank, script in enumerate(scripts)]
    try:
        yield ranks
    finally:
        for each in ranks:
            each.process.kill()
            each.process.wait()
            for pipe in (each.process.stdin, each.process.stdout):
                assert pipe is not None
                pipe.close()


def _begin(rank: int, script: str, stderr: Path) -> RankProcess:
    with stderr.open("wb") as errors:
        process = subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    return RankProcess(rank, process, stderr)


def says(**message: Any) -> str:
    """The script's line that says this to the parent."""
    return f"echo {shlex.quote(json.dumps(message))}"
