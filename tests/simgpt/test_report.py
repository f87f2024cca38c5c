"""`simgpt report`: pages and figures from answers, and what it refuses."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.messages import assert_names
from tests.simgpt.face import simgpt

PREDICT = ("predict", "tiny-1m", "-m", "frontier", "-n", "16", "--plan", "z=4,dp=rest", "--json")
FIGURES = ("mfu", "breakdown", "timeline", "memory", "links")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers")
    assert simgpt(*PREDICT, "-o", str(path / "answer.json")).status == 0
    return path


@pytest.mark.usefixtures("figures_left_out")
def test_a_page_and_its_figures_are_written(folder: Path, tmp_path: Path) -> None:
    page, figures = tmp_path / "report.html", tmp_path / "figures"
    said = simgpt("report", str(folder), "-o", str(page), "--figures", str(figures))
    assert (said.status, said.out) == (0, "")
    assert said.err.endswith(f"wrote {page} and {3 * len(FIGURES)} other files\n")
    suffixes = ("png", "svg", "pdf")
    expected = {f"{name}.{suffix}" for name in FIGURES for suffix in suffixes}
    assert {path.name for path in figures.iterdir()} == expected
    text = page.read_text(encoding="utf-8")
    (question,) = re.findall("<h1>(.*?)</h1>", text)
    assert_names(question, "tiny-1m", "16", "frontier")
    assert (
        "simgpt predict tiny-1m -m frontier -n 16 --stack simgpt --plan z=4,dp=4 --batch 16" in text
    )


@pytest.mark.usefixtures("figures_left_out")
def test_the_page_of_a_stacks_step_has_the_command_that_predicts_it_again(tmp_path: Path) -> None:
    """With fp8, sequences split over two devices, and a stage of ZeRO that the stack has not."""
    answer, page = tmp_path / "answer.json", tmp_path / "report.html"
    plan = "tp=2,cp=2,dp=rest,mbs=1,zero=0,precision=fp8"
    words = ("predict", "tiny-1m", "-m", "dgx-h100", "-n", "16", "--plan", plan, "--batch", "16")
    told = simgpt(*words, "--stack", "megatron-core", "--json", "-o", str(answer))
    assert told.status == 0
    assert simgpt("report", str(answer), "-o", str(page)).status == 0
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert "with stack=megatron-core, precision=fp8" in text
    found = re.findall(r"simgpt (predict tiny-1m [^\n<]*--stack megatron-core [^\n<]*)", text)

    again = shlex.split(found[-1])
    asked = dict(word.split("=") for word in again[again.index("--plan") + 1].split(","))
    wanted = {"tp": "2", "cp": "2", "dp": "4", "zero": "0", "precision": "fp8"}
    assert {key: asked.get(key) for key in wanted} == wanted
    first = json.loads(answer.read_text(encoding="utf-8"))
    assert json.loads(simgpt(*again, "--json").out)["step_s"] == first["step_s"]


@pytest.mark.slow
def test_weak_scaling_is_drawn_for_every_machine_of_the_ladder(tmp_path: Path) -> None:
    said = simgpt("report", "--weak-scaling", "--figures", str(tmp_path))
    assert said.status == 0
    names = {f"weak-scaling-{machine}.png" for machine in ("frontier", "perlmutter", "alps")}
    assert names <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("report", "FILES --weak-scaling"),
        ("report {}", "-o report.html --figures"),
        ("report {} -o /nowhere/x.html", "-o /nowhere"),
        ("report {} -o x.pdf", "-o x.pdf .html"),
        ("report {}/nope.json -o x.html", "nope.json"),
        ("report {} --figures /dev/null/x", "/dev/null/x"),
        ("report /dev/null -o x.html", "/dev/null"),
    ],
)
def test_wrong_input_is_one_sentence(command: str, named: str, folder: Path) -> None:
    said = simgpt(*command.format(folder).split())
    assert said.status == 2
    assert_names(said.sentence, *named.split())


@pytest.mark.slow
@pytest.mark.usefixtures("figures_left_out")
def test_swept_steps_of_a_stack_in_fp8_have_the_commands_that_predict_them_again(
    tmp_path: Path,
) -> None:
    answer, page = tmp_path / "answer.json", tmp_path / "report.html"
    words = ("predict", "tiny-1m", "-m", "dgx-h100", "-n", "8", "--batch", "16", "--stack", "nemo")
    swept = ("--plan", "dp=rest,mbs=1,precision=fp8", "--sweep", "tp=1,2")
    assert simgpt(*words, *swept, "--json", "-o", str(answer)).status == 0
    assert simgpt("report", str(answer), "-o", str(page)).status == 0
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert re.search(r"MFU[^<\n]*bf16", text)
    shown = r"simgpt (predict tiny-1m [^\n<]*--stack nemo [^\n<]*precision=fp8 --batch 16)"
    found = re.findall(shown, text)
    steps = {json.loads(simgpt(*shlex.split(each), "--json").out)["step_s"] for each in found}
    rows = json.loads(answer.read_text(encoding="utf-8"))["rows"]
    assert steps
    assert steps <= {row["prediction"]["step_s"] for row in rows}


@pytest.mark.usefixtures("figures_left_out")
def test_where_the_range_of_a_step_comes_from_stands_once_on_its_page(tmp_path: Path) -> None:
    answer, page = tmp_path / "answer.json", tmp_path / "report.html"
    basis = json.loads(simgpt(*PREDICT).out)["range"]["basis"]
    for asked in (PREDICT, (*PREDICT, "--sweep", "recompute=none,full")):
        assert simgpt(*asked, "-o", str(answer)).status == 0
        assert simgpt("report", str(answer), "-o", str(page)).status == 0
        text = page.read_text(encoding="utf-8").replace("<wbr>", "")
        assert text.count(f": {basis}.") == 1
