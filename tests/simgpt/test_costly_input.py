"""A file that asks for more work than any honest one is refused in a sentence, before the work."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import names
from tests.simgpt.fuzz.costly import COSTLY, command
from topologies.errors import SimgptError
from topologies.files.budget import Budget

ADDRESSES, RESIDENT_KIB, PROCESSOR_S = 2**30, 500 * 1024, 25
READ = ("blank.sh", "patterns.sh", "spaces.sh")  # which ask for little, after all
RUN = """
import json, re, sys
from simgpt.cli import main
sys.argv = ["simgpt", *json.loads(sys.argv[1])]
try:
    main()
finally:
    status = open("/proc/self/status").read()  # rusage counts the parent that it was forked from
    print(re.search(r"VmHWM:\\s*(\\d+)", status)[1], file=sys.stderr)
"""


def limited() -> None:
    """Limit a child: what takes more ends with another status."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_file_is_refused_within_memory_and_time(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(COSTLY[name]())
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(command(name))],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        preexec_fn=limited,
        check=False,
    )
    *said, peak = done.stderr.splitlines() or [""]
    assert done.returncode == (0 if name in READ else 2), done.stderr[-300:]
    assert "Traceback" not in done.stderr
    assert name in READ or len([line for line in said if line.startswith("simgpt: ")]) == 1
    assert int(peak) < RESIDENT_KIB


def test_a_budget_is_spent_to_the_last_unit() -> None:
    budget = Budget("a.sh", "letters", 10, SimgptError)
    budget.charge(4)
    budget.charge(6)
    with pytest.raises(SimgptError, check=names("a.sh", "10", "letters")):
        budget.charge(1)
