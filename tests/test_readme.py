"""README and docs show what their commands print: `SIMGPT_REWRITE=1` writes their output anew.

A block `<!-- output: COMMAND -->` is followed by the command and its output, and compared;
`<!-- excerpt: COMMAND -->` likewise, of a prediction the question and the step alone, of a why with
a roofline the question and that; `<!-- slow: COMMAND -->` like the first, but only among the slow
tests, and of a sweep the last point, of a why the step among the quick ones, and `<!-- slow
excerpt: COMMAND -->` like the second; `<!-- measured: COMMAND -->` likewise, but what was measured
once on a machine is only kept. What takes a second, and shows no option that a quick block does not
show or another quick test does not ask, is slow.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import tempfile
from contextlib import chdir
from pathlib import Path

import pytest

from simgpt.tables import percent
from tests.examples import one_in
from tests.simgpt.face import simgpt
from validation.published import validate_published

SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
ACCURACY = ROOT / "docs" / "accuracy.md"
PAGES = (README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
KINDS = ("output", "excerpt", "slow", "slow excerpt", "measured")
BLOCK = re.compile(
    rf"<!-- ({'|'.join(KINDS)}): (simgpt .*?) -->\n(?:```text\n.*?```\n)?", re.DOTALL
)
WRITES = {
    "--roofline",
    "--figure",
}  # options whose files go into a folder that the test throws away
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def shown(command: str, kind: str = "output") -> str:
    """A command and what it prints, as the pages show it."""
    _, *words = shlex.split(command)
    with (
        tempfile.TemporaryDirectory() as folder,
        chdir(folder if WRITES.intersection(words) else Path.cwd()),
    ):
        said = simgpt(*words)
    assert said.status == 0, said.err
    output = excerpt(said.out) if kind.endswith("excerpt") else said.out
    lines = (line.rstrip() for line in f"$ {command}\n{output}".strip().splitlines())
    return "```text\n" + "\n".join(lines) + "\n```\n"


def excerpt(output: str) -> str:
    """Of what a command prints, the question, and the step with its memory or the roofline."""
    question, *others = output.split("\n\n")
    kept = (part for part in others if part.startswith(("step ", "roofline ")))
    return "\n\n".join((question, *kept))


def blocks(kind: str) -> list[str]:
    """The commands of one kind of block, each once."""
    found = (match for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8")))
    return list(dict.fromkeys(match[2] for match in found if match[1] == kind))


def having(command: str, kind: str) -> list[str]:
    """The texts of the pages that show a command in a block of that kind."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    return [text for text in texts if (kind, command) in BLOCK.findall(text)]


def rewrite(command: str, kind: str) -> None:
    output = shown(command, kind)

    def replacement(match: re.Match[str]) -> str:
        head = match[0].split("\n", 1)[0]
        return f"{head}\n{output}" if match.groups() == (kind, command) else match[0]

    for page in PAGES:
        page.write_text(BLOCK.sub(replacement, page.read_text(encoding="utf-8")), "utf-8")


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        *one_in(2, ((kind, each) for kind in ("output", "excerpt") for each in blocks(kind))),
        *(
            pytest.param(kind, command, marks=SLOW)
            for kind in ("slow", "slow excerpt")
            for command in blocks(kind)
        ),
    ],
)
def test_the_pages_show_what_the_command_prints(kind: str, command: str) -> None:
    if os.environ.get("SIMGPT_REWRITE"):
        rewrite(command, kind)
    output = shown(command, kind)
    assert all(output in text for text in having(command, kind))


SWEPT = re.compile(r"(--sweep [^= ]+=)(\S+)")


def cells(line: str) -> set[str]:
    """What a row of a table has, behind the number of its point."""
    return set(re.split(r"\s{2,}", line.strip())[1:])


@pytest.mark.parametrize("command", one_in(3, filter(SWEPT.search, blocks("slow"))))
def test_the_last_point_of_a_sweep_that_is_slow_is_as_shown(command: str) -> None:
    """A question of one point leaves out what was swept and may say more of the step."""
    values = [match[2].split(",") for match in SWEPT.finditer(command)]
    last, points = {each[-1] for each in values}, math.prod(map(len, values))
    alone = SWEPT.sub(lambda match: match[1] + match[2].rpartition(",")[2], command)
    (found,) = (line for line in shown(alone).splitlines() if line.startswith("0  "))
    for text in having(command, "slow"):
        (block,) = (match[0] for match in BLOCK.finditer(text) if match[2] == command)
        (row,) = (line for line in block.splitlines() if line.startswith(f"{points - 1}  "))
        # That it fits is a column where other points do not.
        kept = cells(row) - last - {"yes"}
        assert len(kept) >= 5
        assert kept <= cells(found)


@pytest.mark.slow
@pytest.mark.parametrize("command", [each for each in blocks("slow") if " why " in each])
def test_the_step_of_a_why_that_is_slow_is_as_shown(command: str) -> None:
    found = re.search(r"^step +(.+? m?s)\b", shown(command.replace(" why ", " predict ", 1)), re.M)
    assert found is not None
    for text in having(command, "slow"):
        assert re.search(rf"^\$ {re.escape(command)}\n.*: {found[1]} a step$", text, re.M)


@pytest.mark.slow
def test_two_published_sources_are_as_predicted_now() -> None:
    """What the slow test above compares whole, for the sources that share one machine."""
    report = validate_published(None, ["2205.05198", "2104.04473"])
    rows = [" ".join(line.split()) for line in ACCURACY.read_text(encoding="utf-8").splitlines()]
    for name, found in report.by("source").items():
        assert found.mape is not None
        assert found.bias is not None
        mape, bias = percent(found.mape), percent(found.bias, sign=True)
        figures = f" {found.rows} {mape} {bias} "
        assert any(row.startswith(name[:20]) and figures in row for row in rows)


@pytest.mark.parametrize("command", blocks("measured"))
def test_the_pages_show_what_was_measured(command: str) -> None:
    if os.environ.get("SIMGPT_REWRITE") == "measured":
        rewrite(command, "measured")
    assert all(f"$ {command}\n" in text for text in having(command, "measured"))


def test_the_readme_sums_up_the_accuracy_that_the_docs_show() -> None:
    text = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\| `(simgpt validate \w+)` \| (\d+) \| ([\d.]+ %) \|$", text, re.M)
    assert len(rows) == 3
    page = ACCURACY.read_text(encoding="utf-8")
    assert all(f"| `{command}` | {cases} | {error} |" in page for command, cases, error in rows)
    outputs = {match[2]: match[0] for match in BLOCK.finditer(page)}
    for command, cases, error in rows:
        lines = outputs[command].splitlines()
        sums = [line for line in lines if line.startswith(("mean absolute", "all "))]
        assert any(cases in line.split() and error in line for line in sums), command


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
