"""`python -m tests.mutants`: which mutations of the product do its tests notice?"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from tests.mutants.mutation import LISTS, Mutation, listed
from tests.mutants.summary import good_enough, summary
from tests.mutants.verdicts import Verdict, judge_all

CHECKOUT = LISTS.parent.parent


def main() -> int:
    """Judge the chosen mutations; 0 if enough of them are killed, else 1."""
    asked = _arguments()
    mutations = listed()
    names = [name for name in asked.only.split(",") if name]
    chosen = _chosen(mutations, names)
    if not chosen:
        print(f"no mutation is called {asked.only}", file=sys.stderr)
        return 2
    if asked.check:
        return _check(chosen)
    run = [each for each in chosen if not each.equivalent or each.id in names]
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def said(verdict: Verdict) -> None:
        of = verdict.mutation
        print(f"{verdict.verdict:9} {of.id:22} {verdict.seconds:6.1f} s  {verdict.by}", flush=True)
        if asked.out:
            with open(asked.out, "a", encoding="utf-8") as out:
                out.write(json.dumps(verdict.row()) + "\n")

    found = judge_all(CHECKOUT, run, jobs=asked.jobs, timeout_s=asked.timeout, said=said)
    print(f"\n{summary(found, [each for each in chosen if each not in run])}", end="")
    return 0 if good_enough(found) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="ids, or their beginnings, by commas")
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested side by side")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one mutation")
    parser.add_argument("--out", type=Path, help="add each verdict as a line of JSON to this file")
    parser.add_argument("--check", action="store_true", help="only say which entries are stale")
    return parser.parse_args()


def _chosen(mutations: list[Mutation], names: list[str]) -> list[Mutation]:
    exact = [each for each in mutations if each.id in names]
    if len(exact) == len(names) and names:
        return exact
    return [each for each in mutations if not names or each.id.startswith(tuple(names))]


def _check(mutations: list[Mutation]) -> int:
    reasons = {each.id: each.stale(CHECKOUT) for each in mutations}
    for name, reason in reasons.items():
        if reason:
            print(f"{name}: {reason}")
    return 1 if any(reasons.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
