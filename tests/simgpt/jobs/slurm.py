"""What sbatch would look at in a job script: its options, their values, and whether bash reads it.

Source of the options: slurm.schedmd.com/sbatch.html.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

NAME = r"[A-Za-z0-9_.@+,-]+"
COUNT = r"[1-9]\d*"
OPTIONS = {
    "--job-name": r"[A-Za-z0-9_.-]+",
    "--nodes": COUNT,
    "--segment": COUNT,
    "--ntasks-per-node": COUNT,
    "--cpus-per-task": COUNT,
    "--gpus-per-node": COUNT,
    "--mem-per-gpu": r"\d+[KMGT]?",
    "--partition": NAME,
    "--constraint": r"[A-Za-z0-9_&|-]+",
    "--qos": NAME,
    "--account": NAME,
    "--exclusive": "",
    "--time": r"(?:\d+-)?\d{2}:[0-5]\d:[0-5]\d",
    "--output": r"[\w%.-]+",
}


@dataclass(frozen=True)
class Submitted:
    """A script's options, and its ranks by what it starts."""

    options: dict[str, str]
    ranks: int


def submitted(script: str) -> Submitted:
    """The script as sbatch takes it; an AssertionError says what it would refuse."""
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    body = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[body:] if line.startswith("#SBATCH")]  # sbatch stops there
    options: dict[str, str] = {}
    for line in lines:
        if line.startswith("#SBATCH"):
            found = re.fullmatch(r"#SBATCH (--[a-z-]+)(?:=(\S+))?", line)
            assert found is not None, line
            name, value = found[1], found[2] or ""
            assert re.fullmatch(OPTIONS[name], value), line
            assert name not in options, line
            options[name] = value
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    started = re.search(r"--nproc-per-node=(\d+)", script)
    tasks = int(options["--nodes"]) * int(options["--ntasks-per-node"])
    return Submitted(options, tasks * (int(started[1]) if started else 1))
