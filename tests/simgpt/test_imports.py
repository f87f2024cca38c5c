"""Help and predictions start fast because they leave the heavy libraries alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulator.engine.core import is_built

# Each command runs in a fork of a process that has imported no more than the command line is.
ASK = """
import os, sys
from simgpt.cli import main
for words in {commands!r}:
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.wait4(child, 0)[1]) == 0, words
        continue
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = words
    try:
        main()
    except SystemExit as end:
        print(*words[1:], *sys.modules, sep="\\t", file=sys.stderr, flush=True)
        os._exit(end.code or 0)
"""
HEAVY = (
    *("torch", "matplotlib", "scipy", "networkx", "jinja2", "pandas", "dask", "distributed"),
    *("omegaconf", "sqlite3"),
)
NOT_NEEDED = ("cattrs", "numpy.ma", "simulator.noise", *(("simpy",) if is_built() else ()))
FOR_PREDICTIONS = ("simpy", "numpy", "cattrs", "rich", "simulator", "topologies.machine")


LIGHT = {
    "--help": (*HEAVY, *FOR_PREDICTIONS),
    "--version": (*HEAVY, *FOR_PREDICTIONS),
    "predict tiny-30k -m frontier --plan dp=2": (*HEAVY, *NOT_NEEDED),
    "predict tiny-30k -m frontier --plan tp=2,z=2,dp=8 --json": HEAVY,
    "why --help": HEAVY,
    "report --help": HEAVY,
    "search --help": (*HEAVY, "simulator", "simpy"),
    "predict tiny-30k -m frontier --plan dp=rest --sweep devices=2,4": HEAVY,
    "sweep --help": (*HEAVY, "simulator", "simpy"),
    "run --help": HEAVY,
    "serve --help": (*HEAVY, "simulator", "simpy"),
    "import --help": (*HEAVY, "simulator", "simpy", "yaml"),
    "export --help": (*HEAVY, "simulator", "simpy", "yaml"),
    "models": HEAVY,
    "machines": HEAVY,
}


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """The modules that there are after each command."""
    asked = ASK.format(commands=[["simgpt", *command.split()] for command in LIGHT])
    env = {**os.environ, "SIMGPT_ENGINE": ""}  # SimPy is loaded by its own engine
    words = [sys.executable, "-c", asked]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-300:]
    found = {}
    for line in done.stderr.splitlines():
        for command in LIGHT:
            if line.startswith(beginning := command.replace(" ", "\t") + "\t"):
                found[command] = set(line.removeprefix(beginning).split("\t"))
    return found


@pytest.mark.parametrize("command", LIGHT)
def test_a_light_command_imports_nothing_heavy(command: str, imported: dict[str, set[str]]) -> None:
    assert imported[command] & {"simgpt.cli"}
    assert imported[command].isdisjoint(LIGHT[command])
