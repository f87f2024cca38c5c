"""Help and predictions start fast because they leave the heavy libraries alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulator.engine.compiled import is_built

ASK = """
import sys
from simgpt.cli import main
sys.argv = {words!r}
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*(name for name in {libraries!r} if name in sys.modules), file=sys.stderr)
"""
HEAVY = (
    *("torch", "matplotlib", "scipy", "networkx", "jinja2", "pandas", "dask", "distributed"),
    "omegaconf",
)
NOT_NEEDED = ("cattrs", "numpy.ma", "simulator.noise", *(("simpy",) if is_built() else ()))
FOR_PREDICTIONS = ("simpy", "numpy", "cattrs", "rich", "simulator", "topologies.machine")


@pytest.mark.parametrize(
    ("command", "libraries"),
    [
        ("--help", (*HEAVY, *FOR_PREDICTIONS)),
        ("--version", (*HEAVY, *FOR_PREDICTIONS)),
        (
            "predict tiny-30k -m frontier --plan data=2",
            (*HEAVY, *NOT_NEEDED),
        ),
        ("predict tiny-30k -m frontier --plan x=2,z=2,data=8 --json", HEAVY),
        ("why --help", HEAVY),
        ("report --help", HEAVY),
        ("search --help", (*HEAVY, "simulator", "simpy")),
        ("predict tiny-30k -m frontier --plan data=rest --sweep devices=2,4", HEAVY),
        ("sweep --help", (*HEAVY, "simulator", "simpy")),
        ("run --help", HEAVY),
        ("serve --help", (*HEAVY, "simulator", "simpy")),
        ("import --help", (*HEAVY, "simulator", "simpy", "yaml")),
        ("export --help", (*HEAVY, "simulator", "simpy", "yaml")),
        ("models", HEAVY),
        ("machines", HEAVY),
    ],
)
def test_a_light_command_imports_nothing_heavy(command: str, libraries: tuple[str, ...]) -> None:
    asked = ASK.format(words=["simgpt", *command.split()], libraries=libraries)
    env = {**os.environ, "SIMGPT_ENGINE": ""}  # SimPy is loaded by its own engine
    words = [sys.executable, "-c", asked]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    assert done.stderr.split() == []
