"""Draw random mutations, run the tests that reach them, and print those that no test notices.

    python -m tools.mutate simulator/costs executor --number 50 --seed 7
    python -m tools.mutate --since v0.3.0 --number 50

cosmic-ray makes the mutations, as `tools/mutate.toml` says, in a worktree of the last commit under
build/. The nearest tests are the quick ones of the drawn packages, and of these pytest-testmon runs
for each mutation those that a first run has seen to execute it. With --all-tests every quick test
is run for each survivor: those of other packages, and those that execute it in another process.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from cosmic_ray.commands import execute, init
from cosmic_ray.config import load_config
from cosmic_ray.tools.filters.git import GitFilter
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkItem

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "build" / "mutate"
PACKAGES = ["topologies", "workload", "simulator", "executor", "validation", "simgpt"]
QUICK = ("-n", "2", "--dist", "worksteal", "-m", "not gpu and not slow")


def main() -> int:
    """Draw, run and print; 0 if every mutation is killed, 1 if some survive."""
    asked = _arguments()
    settings = tomllib.loads((ROOT / "tools" / "mutate.toml").read_text(encoding="utf-8"))
    _run("git", "worktree", "add", "--quiet", "--force", "--detach", str(COPY), "HEAD")
    try:
        os.chdir(COPY)
        for built in ROOT.glob("simulator/engine/_core*.so"):
            (COPY / built.relative_to(ROOT)).write_bytes(built.read_bytes())
        chance = random.Random(asked.seed)
        with use_db("mutate.sqlite") as items:
            draw(items, modules(asked.paths, asked.since), asked, settings, chance)
            number = items.num_work_items
            print(f"{number} mutations drawn", flush=True)
            _test(items, asked.all_tests)
            return _told(items, number)
    finally:
        os.chdir(ROOT)
        _run("git", "worktree", "remove", "--force", str(COPY))


def _test(items: WorkDB, all_tests: bool) -> None:
    """Run the nearest tests for each mutation, and all for those that survive if so asked."""
    near = sorted({f"tests/{each.mutations[0].module_path.parts[0]}" for each in items.work_items})
    _run(sys.executable, "-m", "pytest", "--testmon", *QUICK, *near)
    config = load_config(str(ROOT / "tools" / "mutate.toml"))
    config["test-command"] = shlex.join([*shlex.split(config.test_command), *near])
    execute(items, config)
    if all_tests:
        survivors = [item for item, result in items.completed_work_items if not result.is_killed]
        items.clear()
        items.add_work_items(survivors)
        config["test-command"] = shlex.join([sys.executable, "-m", "pytest", "-x", *QUICK])
        execute(items, config)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__)
    parser.add_argument("paths", nargs="*", default=PACKAGES, help="packages, folders or modules")
    parser.add_argument("--since", default="", help="only lines that changed since this commit")
    parser.add_argument("--number", type=int, default=50, help="mutations to draw")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other mutations")
    parser.add_argument("--all-tests", action="store_true", help="run all for survivors; long")
    return parser.parse_args()


def modules(paths: list[str], since: str) -> dict[Path, int]:
    """The modules below `paths`, each with its number of lines, or of lines new since a commit."""
    if since:
        changed = _run("git", "diff", "--numstat", since, "--", *paths).splitlines()
        rows = [line.split("\t") for line in changed]
        return {
            Path(name): int(added)
            for added, _, name in rows
            if name.endswith(".py") and added != "0" and Path(name).exists()
        }
    found = [Path(path) for path in paths if path.endswith(".py")]
    found += [each for path in paths for each in sorted(Path(path).rglob("*.py"))]
    return {path: len(path.read_text(encoding="utf-8").splitlines()) for path in found}


def draw(
    items: WorkDB,
    weights: dict[Path, int],
    asked: argparse.Namespace,
    settings: dict[str, Any],
    chance: random.Random,
) -> None:
    """Leave in `items` the drawn mutations: a module by its lines, a place, one mutation of it."""
    times = chance.choices(list(weights), list(weights.values()), k=asked.number)
    left_out = re.compile("|".join(settings["mutate"]["left-out"]))
    chosen: list[WorkItem] = []
    for module in sorted(set(times)):
        init([module], items, {})
        if asked.since:
            GitFilter()._skip_filtered(items, asked.since)
        places: dict[tuple[int, int], list[WorkItem]] = {}
        for item in sorted(items.pending_work_items, key=_order):
            spec = item.mutations[0]
            if not left_out.fullmatch(spec.operator_name):
                places.setdefault(spec.start_pos, []).append(item)
        number = min(times.count(module), len(places))
        chosen += [chance.choice(places[at]) for at in chance.sample(sorted(places), number)]
    items.clear()
    items.add_work_items(chosen)


def _order(item: WorkItem) -> tuple[Any, ...]:
    spec = item.mutations[0]
    return spec.start_pos, spec.end_pos, spec.operator_name, spec.occurrence


def _told(items: WorkDB, drawn: int) -> int:
    """Print the survivors, and how many of the drawn mutations were killed."""
    survivors = [result for _, result in items.completed_work_items if not result.is_killed]
    for result in survivors:
        print(result.diff, end="\n\n")
    print(f"{drawn - len(survivors)} of {drawn} mutations were killed")
    return 1 if survivors else 0


def _run(*words: str) -> str:
    """What a command prints; its failure is ours."""
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
