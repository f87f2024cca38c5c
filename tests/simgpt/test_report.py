"""`simgpt report`: pages and figures from answers, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simgpt.face import assert_golden, simgpt

PREDICT = ("predict", "tiny-1m", "-m", "frontier", "-n", "16", "--plan", "z=4,data=rest", "--json")
FIGURES = ("breakdown", "timeline", "memory", "links")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers")
    assert simgpt(*PREDICT, "-o", str(path / "answer.json")).status == 0
    return path


def test_the_help_opens_with_two_examples() -> None:
    said = simgpt("report", "--help")
    assert said.out.count("\n  simgpt report ") == 3
    assert_golden("help-report.txt", said.out)


def test_a_page_and_its_figures_are_written(folder: Path, tmp_path: Path) -> None:
    page, figures = tmp_path / "report.html", tmp_path / "figures"
    said = simgpt("report", str(folder), "-o", str(page), "--figures", str(figures))
    assert (said.status, said.out) == (0, "")
    assert said.err.endswith(f"wrote {page} and {3 * len(FIGURES)} other files\n")
    suffixes = ("png", "svg", "pdf")
    expected = {f"{name}.{suffix}" for name in FIGURES for suffix in suffixes}
    assert {path.name for path in figures.iterdir()} == expected
    text = page.read_text(encoding="utf-8")
    assert "How long does one training step of tiny-1m take on 16 devices of frontier" in text
    assert "simgpt predict tiny-1m -m frontier -n 16 --plan x=1,y=1,z=4,data=4 --batch 16" in text


@pytest.mark.slow
def test_weak_scaling_is_drawn_for_every_machine_of_the_ladder(tmp_path: Path) -> None:
    said = simgpt("report", "--weak-scaling", "--figures", str(tmp_path))
    assert said.status == 0
    names = {f"weak-scaling-{machine}.png" for machine in ("frontier", "perlmutter", "alps")}
    assert names <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("report", "give FILES, or --weak-scaling"),
        ("report {}", "give -o report.html, or --figures and a folder"),
        ("report {} -o /nowhere/x.html", "there is no folder /nowhere"),
        ("report {} -o x.pdf", "must end in .html"),
        ("report {}/nope.json -o x.html", "cannot read"),
        ("report {} --figures /dev/null/x", "cannot make the folder"),
        ("report /dev/null -o x.html", "it is no regular file"),
    ],
)
def test_wrong_input_is_one_sentence(command: str, words: str, folder: Path) -> None:
    said = simgpt(*command.format(folder).split())
    assert said.status == 2
    assert words in said.sentence
