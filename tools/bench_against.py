"""Times of this checkout beside those of another commit: `python -m tools.bench_against [COMMIT]`.

The commit is checked out into a git worktree of its own, removed at the end, and the compiled core
of both is built as the product builds it (setup.py; without a compiler neither has one). Then this
checkout's benchmarks/questions.py times every subject on either's packages, by PYTHONPATH, in
processes that take turns (A B A B), so that a machine that becomes slower does so for both. A ratio
is that of one turn's medians, this checkout's over the other's: below 1 this checkout is faster.
Printed are the medians over the turns, and the least and the largest ratio.

Without COMMIT it is the last tag before this checkout's commit or, where there is none, the commit
before it. What a commit cannot answer yet is said in its row.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from benchmarks._command import Row, table
from benchmarks.questions import SMALLEST, USUAL, chosen

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("subject", "how", "this_s", "other_s", "ratio", "least", "most", "turns", "lacks")
Key = tuple[str, str | None]


def git(checkout: Path, *words: str) -> str | None:
    """What git says, or None where it refuses."""
    ended = subprocess.run(
        ["git", "-C", str(checkout), *words], capture_output=True, text=True, check=False
    )
    return ended.stdout.strip() if ended.returncode == 0 else None


def commit_of(checkout: Path, name: str | None) -> str:
    """The commit that a name stands for; without one the last release, or the commit before."""
    name = name or git(checkout, "describe", "--tags", "--abbrev=0", "HEAD~1") or "HEAD~1"
    found = git(checkout, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if found is None:
        raise click.UsageError(f"{name} is not a commit of {checkout}")
    return found


@contextmanager
def checked_out(checkout: Path, commit: str) -> Iterator[Path]:
    """A worktree of a commit, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve() / "other"
        if git(checkout, "worktree", "add", "--detach", str(path), commit) is None:
            raise click.ClickException(f"git cannot check out {commit}")
        try:
            yield path
        finally:
            git(checkout, "worktree", "remove", "--force", str(path))


def build_core(checkout: Path) -> None:
    """Build the compiled core beside its source, where that has changed."""
    if (checkout / "setup.py").exists():
        words = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        ended = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)
        if ended.returncode:
            click.echo(f"{checkout}: no compiled core: {_last(ended.stderr)}", err=True)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1][:200]


def timed(packages: Path, subject: str, words: Sequence[str], folder: Path) -> Row:
    """What the benchmark of this checkout finds of a subject with a checkout's packages."""
    file = folder / "rows.json"
    file.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile every module
    command = [sys.executable, "-m", "benchmarks.questions", "--only", subject]
    ended = subprocess.run(
        [*command, *words, "--json", str(file)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode or not file.exists():
        row = {"subject": subject, "how": None, "median_s": None, "lacks": _last(ended.stderr)}
        return {"measured_on": {}, "rows": [row]}
    found: Row = json.loads(file.read_text(encoding="utf-8"))
    used = found["measured_on"]["packages"]
    if used != str(packages):
        raise click.ClickException(f"{used} was timed in place of {packages}")
    return found


def turns_of(
    sides: Sequence[Path], subject: str, words: Sequence[str], folder: Path, turns: int
) -> list[tuple[Row, ...]]:
    """What both sides find, in turns."""
    return [tuple(timed(side, subject, words, folder) for side in sides) for _ in range(turns)]


def compared(turns: Sequence[Sequence[Row]]) -> Iterator[Row]:
    """A row for each way of asking a subject: both sides' medians, and the ratios of the turns."""
    by_turn = [[_by_key(side) for side in turn] for turn in turns]
    keys = dict.fromkeys(key for turn in by_turn for side in turn for key in side)
    answered = {subject for subject, how in keys if how is not None}
    for subject, how in keys:
        lacks = [_lacks(name, turns, at) for at, name in enumerate(("this", "other"))]
        if how is None and subject in answered:
            continue  # the row of the side that can answer says what the other lacks
        row: Row = dict.fromkeys(COLUMNS) | {"subject": subject, "how": how, "turns": len(turns)}
        row["lacks"] = "; ".join(filter(None, lacks)) or None
        seconds = [
            [turn[at][subject, how] for turn in by_turn if turn[at].get((subject, how))]
            for at in (0, 1)
        ]
        for name, own in zip(("this_s", "other_s"), seconds, strict=True):
            row[name] = statistics.median(own) if own else None
        if all(len(own) == len(turns) for own in seconds):
            ratios = [this / other for this, other in zip(*seconds, strict=True)]
            row |= {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        yield row


def _by_key(side: Row) -> dict[Key, Any]:
    return {(row["subject"], row["how"]): row["median_s"] for row in side["rows"]}


def _lacks(name: str, turns: Sequence[Sequence[Row]], at: int) -> str | None:
    """What a side cannot answer."""
    said = [row["lacks"] for turn in turns for row in turn[at]["rows"] if row["lacks"]]
    return f"{name}: {said[0]}" if said else None


@click.command()
@click.argument("commit", required=False)
@click.option("--only", multiple=True, help="Subjects: predict, sweep/fsdp, ... (repeatable)")
@click.option("--turns", default=3, show_default=True, help="Of each subject.")
@click.option("--repeats", default=3, show_default=True, help="In each turn, at most.")
@click.option("--smallest", is_flag=True, help="At its smallest, to see that it works.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--checkout", type=click.Path(path_type=Path), default=ROOT, help="Of this side.")
def main(
    *,
    commit: str | None,
    only: tuple[str, ...],
    turns: int,
    repeats: int,
    smallest: bool,
    file: Path | None,
    checkout: Path,
) -> None:
    """Time this checkout beside COMMIT, by default the last release or else the commit before."""
    checkout = checkout.resolve()
    other = commit_of(checkout, commit)
    words = ["--repeats", str(repeats), *(["--smallest"] if smallest else [])]
    names = chosen(SMALLEST if smallest else USUAL, only)
    rows: list[Row] = []
    about: Row = {}
    with checked_out(checkout, other) as path, tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "benchmarks", Path(folder) / "benchmarks")
        sides = (checkout, path)
        for side in sides:
            build_core(side)
        commits = (git(checkout, "describe", "--always", "--dirty"), other)
        try:
            for subject in names:
                click.echo(f"{subject} ...", err=True)
                found = turns_of(sides, subject, words, Path(folder), turns)
                rows += compared(found)
                about = {
                    name: side["measured_on"] | {"commit": commit}
                    for name, side, commit in zip(("this", "other"), found[0], commits, strict=True)
                }
                if file is not None:
                    text = json.dumps({"measured_on": about, "rows": rows}, indent=1)
                    file.write_text(text + "\n", encoding="utf-8")
        finally:  # also after Ctrl-C: a run takes an hour and a half
            for name, each in about.items():
                core = "compiled core" if each.get("compiled_core") else "no compiled core"
                click.echo(f"{name}: {each['commit']}, {core}")
            if rows:
                click.echo(table(rows, COLUMNS))


if __name__ == "__main__":
    main()
