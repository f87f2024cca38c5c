"""This checkout beside another commit: which commit, whose packages, and what of the ratios."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks._command import Row
from tools.bench_against import commit_of, compared, main

OLD = """
class Session:
    def __enter__(self): return self
    def __exit__(self, *_): pass

def predict(*_, **__):
    return sum(range(100_000))
"""
NEW = f"{OLD}\ndef why(*_, **__):\n    return predict()\n"


def git(folder: Path, *words: str) -> None:
    about = [
        "-c",
        "user.name=Ada",
        "-c",
        "user.email=ada@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    subprocess.run(["git", "-C", str(folder), *about, *words], check=True, capture_output=True)


def commit(folder: Path, source: str) -> None:
    (folder / "simgpt").mkdir(exist_ok=True)
    (folder / "simgpt" / "__init__.py").write_text(source, encoding="utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "packages: change")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of three commits, of which the first cannot say why."""
    if shutil.which("git") is None:
        pytest.skip("no git")
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for source in (OLD, NEW, f"{NEW}\n"):
        commit(folder, source)
    return folder.resolve()


def side(median_s: float | None, lacks: str | None = None) -> Row:
    how = "plain" if median_s else None
    row = {"subject": "why/a", "how": how, "median_s": median_s, "lacks": lacks}
    return {"measured_on": {}, "rows": [row]}


def test_a_ratio_is_that_of_one_turn_so_that_a_slower_machine_slows_both() -> None:
    # Turns of 1 over 2, 3 over 4 and 9 over 10: by hand 0.5, 0.75 and 0.9.
    turns = [(side(1.0), side(2.0)), (side(9.0), side(10.0)), (side(3.0), side(4.0))]
    (row,) = compared(turns)
    assert (row["this_s"], row["other_s"]) == (3.0, 4.0)
    assert (row["ratio"], row["least"], row["most"]) == (0.75, 0.5, 0.9)
    assert row["lacks"] is None


def test_a_commit_that_cannot_answer_has_no_ratio_and_says_what_it_lacks() -> None:
    (row,) = compared([(side(1.0), side(None, "AttributeError: why"))])
    assert (row["how"], row["this_s"], row["other_s"], row["ratio"]) == ("plain", 1.0, None, None)
    assert row["lacks"] == "other: AttributeError: why"


def test_without_a_name_it_is_the_last_release_or_else_the_commit_before(checkout: Path) -> None:
    before = commit_of(checkout, "HEAD~1")
    assert commit_of(checkout, None) == before
    git(checkout, "tag", "v0.1.0", "HEAD~2")
    git(checkout, "tag", "v0.2.0")
    assert commit_of(checkout, None) == commit_of(checkout, "v0.1.0") != before


def test_a_name_of_no_commit_is_refused(checkout: Path) -> None:
    with pytest.raises(click.UsageError):
        commit_of(checkout, "nosuch")


def test_both_commits_are_timed_on_their_own_packages(checkout: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    words = ["HEAD~2", "--checkout", str(checkout), "--smallest", "--turns", "1", "--repeats", "1"]
    ended = CliRunner().invoke(
        main,
        [*words, "--only", "predict/a", "--only", "why/a", "--json", str(file)],
        catch_exceptions=False,
    )
    assert ended.exit_code == 0, ended.output
    *predicted, why = json.loads(file.read_text(encoding="utf-8"))["rows"]
    hows = ["plain", "new", "again", "other price", "other batch"]
    assert [row["how"] for row in predicted] == hows
    assert all(row["this_s"] > 0 and row["other_s"] > 0 for row in predicted)
    assert why["this_s"] > 0
    assert (why["other_s"], why["ratio"]) == (None, None)
    assert why["lacks"].startswith("other: AttributeError")
    listed = subprocess.run(
        ["git", "-C", str(checkout), "worktree", "list"], check=True, capture_output=True, text=True
    )
    assert len(listed.stdout.splitlines()) == 1


def test_what_was_timed_before_an_interruption_is_kept(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turns_of(sides: object, subject: str, *_: object) -> list[tuple[Row, Row]]:
        if subject == "why/a":
            raise KeyboardInterrupt
        return [(side(1.0), side(2.0))]

    monkeypatch.setattr("tools.bench_against.turns_of", turns_of)
    file = tmp_path / "rows.json"
    words = ["HEAD~1", "--checkout", str(checkout), "--smallest", "--json", str(file)]
    ended = CliRunner().invoke(main, [*words, "--only", "predict/a", "--only", "why/a"])
    assert ended.exit_code != 0
    (row,) = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert row["ratio"] == 0.5
    assert "0.5" in ended.stdout.split()
