"""`python -m tests.simgpt.fuzz`: many inputs of some seeds; ends with 1 if anything was found."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.simgpt.fuzz.bases import bases_of
from tests.simgpt.fuzz.draw import TORCH, WEIGHTS
from tests.simgpt.fuzz.fuzz import Findings, fuzz

EVERY = 500
SHARE = 0.02  # of inputs in a process of their own


def main() -> int:
    """Run them, print each finding as it is made, and then how many inputs ended how."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="in all, over the seeds")
    parser.add_argument("--seeds", default="11,12,13")
    parser.add_argument("--first", type=int, default=0, help="number of each seed's first input")
    parser.add_argument("--only", default=",".join(WEIGHTS), help="kinds of inputs")
    parser.add_argument("--keep", type=Path, help="a folder for the files of findings")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    each = range(given.first, given.first + -(-given.inputs // len(seeds)))
    kinds = given.only.split(",")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        bases = bases_of(Path(folder), trained=not {*kinds}.isdisjoint(TORCH))
    found = 0
    for seed in seeds:
        findings = fuzz(
            seed, each, bases, kinds, keep=given.keep, own_process=SHARE, progress=_Progress(seed)
        )
        print(f"seed {seed}: {findings.inputs} inputs by kind {dict(findings.kinds)}")
        print(f"  by status {dict(findings.statuses)}")
        for group, count in findings.groups.most_common():
            print(f"  {count:5}  {ascii(group)[1:-1]}")
        print(f"  {len(findings.lines)} findings in {len(findings.groups)} groups", flush=True)
        found += len(findings.lines)
    return 1 if found else 0


class _Progress:
    """Prints new findings, and now and then how far the run is."""

    def __init__(self, seed: int) -> None:
        self._seed, self._said, self._begun = seed, 0, time.monotonic()

    def __call__(self, findings: Findings) -> None:
        for line in findings.lines[self._said :]:
            print(line, flush=True)
        self._said = len(findings.lines)
        if findings.inputs % EVERY == 0:
            took = time.monotonic() - self._begun
            print(f"... seed {self._seed}: {findings.inputs} inputs, {self._said} findings, "
                  f"{took:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
