"""What a run of tests found, as JSON and as Markdown: `python -m tools.test_record JUNIT RECORD`.

JUNIT is what `pytest --junitxml` wrote, also of a run with failures, which the record names.
.github/workflows/nightly.yml keeps one of each night's `make test-all`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click

SLOWEST = 20
OUTCOMES = ("passed", "failed", "skipped")
Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A test that ran, and the package that it is of."""

    name: str
    package: str
    outcome: str
    seconds: float


def cases_of(suites: ElementTree.Element) -> Iterator[Case]:
    """The tests of a report. One that failed and was torn down with an error is two cases of one
    name there."""
    for case in suites.iter("testcase"):
        module, name = case.get("classname", ""), case.get("name", "")
        outcome = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif case.find("skipped") is not None:
            outcome = "skipped"
        seconds = float(case.get("time", 0))
        yield Case(f"{module}::{name}", package_of(module), outcome, seconds)


def package_of(module: str) -> str:
    """The package that a module of tests, or one with a doctest, is of."""
    first, *others = module.split(".")
    if first == "tests" and others and not others[0].startswith("test_"):
        return others[0]
    return first


def found_in(report: str) -> Record:
    """What a report says: counts by package, what failed, seconds, and the slowest tests."""
    suites = ElementTree.fromstring(report)
    cases = list(cases_of(suites))
    counts: dict[str, Counter[str]] = {}
    for case in cases:
        for package in ("all", case.package):
            counts.setdefault(package, Counter())[case.outcome] += 1
    slowest = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    own = list(suites.iter("testsuite"))
    return {
        "date": min((suite.get("timestamp", "") for suite in own), default=""),
        "wall_s": sum(float(suite.get("time", 0)) for suite in own),
        "counts": {
            package: {outcome: each[outcome] for outcome in OUTCOMES}
            for package, each in sorted(counts.items())
        },
        "failed": sorted({case.name for case in cases if case.outcome == "failed"}),
        "slowest": [{"test": case.name, "seconds": case.seconds} for case in slowest],
    }


def made_on() -> Record:
    """The commit, and what its tests ran on."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        torch: str | None = version("torch")
    except PackageNotFoundError:
        torch = None
    return {
        "commit": commit.stdout.strip() or None,
        "python": platform.python_version(),
        "torch": torch,
        "cores": len(os.sched_getaffinity(0)),
    }


def summary(record: Record) -> str:
    """A record in Markdown."""
    lines = [
        f"{record['command']} of {record['commit']}: {record['wall_s']:.0f} s on "
        f"{record['cores']} cores, Python {record['python']}, torch {record['torch']}\n",
        *_table(("package", *OUTCOMES), [(p, *c.values()) for p, c in record["counts"].items()]),
    ]
    if record["failed"]:
        lines += ["\nFailed:\n", *(f"- `{name}`" for name in record["failed"])]
    rows = [(f"`{row['test']}`", f"{row['seconds']:.1f}") for row in record["slowest"]]
    return "\n".join([*lines, "", *_table(("slowest", "s"), rows)])


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


@click.command()
@click.argument("junit", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("record", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--command", default="make test-all", show_default=True, help="What ran.")
def main(junit: Path, record: Path, command: str) -> None:
    """Write the RECORD of a run of tests from the file JUNIT, and print it in Markdown."""
    try:
        found = found_in(junit.read_text(encoding="utf-8"))
    except ElementTree.ParseError as error:
        raise click.UsageError(f"{junit} is not a JUnit report: {error}") from None
    whole = {"command": command, **made_on(), **found}
    record.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    click.echo(summary(whole))


if __name__ == "__main__":
    main()
