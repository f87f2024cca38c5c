"""How many plans of parity tests train as the plain model does, and how near.

    python -m tests.executor.parity_cases [PYTEST'S ARGUMENTS]

runs the parity tests (without arguments, those of experts, their dispatchers and splits, context,
latent attention, windows, the second token, layers of hybrids and DualPipe, slow ones too) and
prints for each file how many plans were compared, on how many ranks at most, and the largest
relative errors of losses and weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

LOG = "SIMGPT_PARITY_LOG"  # the file that each compared plan is noted in
LONGEST_S = 14_400  # on a slow machine all parity tests take more than two hours
PARTS = (
    "experts",
    "dispatchers",
    "folds",
    "masks",
    "cp",
    "latent",
    "windows",
    "oss",
    "balance",
    "mtp",
    "hybrid",
    "dual",
)
FOLDER = Path(__file__).parent


def note(ranks: int, plans: Sequence[object], errors: Sequence[tuple[float, float]]) -> None:
    """Append the errors of plans to the log, if there is one."""
    if not (name := os.environ.get(LOG)):
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    lines = [
        json.dumps([test, ranks, str(plan), *pair])
        for plan, pair in zip(plans, errors, strict=True)
    ]
    with Path(name).open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def main(words: Sequence[str]) -> int:
    """Run the tests and print the table; returns pytest's status."""
    files = [str(FOLDER / f"test_parity_{part}.py") for part in PARTS]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", *(words or files)]
        heard = {**os.environ, LOG: str(log)}
        done = subprocess.run(command, env=heard, check=False, timeout=LONGEST_S)
        rows = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    by_file = defaultdict[str, list[list[float]]](list)
    for test, ranks, _, *errors in map(json.loads, rows):
        by_file[Path(test).stem].append([ranks, *errors])
    everything = [each for cases in by_file.values() for each in cases]
    print(f"{'tests':28}{'plans':>7}{'ranks':>7}{'of losses':>12}{'of weights':>12}")
    for name, cases in [*sorted(by_file.items()), ("all", everything)]:
        most = [max((case[column] for case in cases), default=0) for column in range(3)]
        print(f"{name:28}{len(cases):7}{most[0]:7}{most[1]:12.1e}{most[2]:12.1e}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
