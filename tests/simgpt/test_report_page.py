"""`simgpt report` on what other commands wrote: the page says what was asked, and of what."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from simgpt.asked_again import ASKING
from tests.messages import assert_names
from tests.simgpt.face import simgpt
from validation.report.answers import Answers, read_answers
from validation.report.figures.labels import labels
from validation.report.figures.lines import ladders_of, scaling_lines
from validation.report.provenance import is_fp8, is_usual
from validation.report.read_prediction import WHY_ROWS

pytestmark = pytest.mark.usefixtures("figures_left_out")

TINY = ("-n", "16", "--plan", "z=4,dp=rest", "--batch", "16")
COMMAND = "simgpt predict tiny-1m -m frontier -n 16 --stack simgpt --plan z=4,dp=4 --batch 16"
FRONTIER = ("predict", "tiny-1m", "-m", "frontier", *TINY)


def own_cluster(folder: Path) -> Path:
    """The machine of docs/your-cluster.md, which says nothing of power."""
    text = Path("docs/your-cluster.md").read_text(encoding="utf-8")
    path = folder / "mycluster.toml"
    path.write_text(text.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    return path


def page_of(*files: Path) -> str:
    """The page's text, without figures, scripts and tags, and with plain spaces before units."""
    page = files[0].parent / "report.html"
    said = simgpt("report", *map(str, files), "-o", str(page))
    assert said.status == 0, said.err
    text = page.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    text = re.sub(r"<(svg|style|script).*?</\1>", "", text, flags=re.DOTALL)
    return unescape(re.sub(r"<wbr>|</?b>", "", text).replace("<", "\n<").replace(">", ">\n"))


def question_in(page: str) -> str:
    """What its head says was asked."""
    return page.partition("<h1>\n")[2].partition("\n")[0]


def answered(path: Path, *words: str) -> Path:
    said = simgpt(*words, "--json", "-o", str(path))
    assert said.status == 0, said.err
    return path


def test_energy_is_told_of_as_predict_tells_it(tmp_path: Path) -> None:
    (line,) = [x for x in simgpt(*FRONTIER).out.splitlines() if x.startswith("energy per step")]
    page = page_of(answered(tmp_path / "a.json", *FRONTIER))
    assert line.split("  ")[-1].strip().split(" at ")[0] in page


def test_a_machine_without_facts_on_power_is_reported_without_energy(tmp_path: Path) -> None:
    words = ("predict", "gpt-5b", "-m", str(own_cluster(tmp_path)), "-n", "64")
    plan = ("--plan", "z=8,dp=rest,recompute=full", "--batch", "512", "--tokens", "300B")
    page = page_of(answered(tmp_path / "a.json", *words, *plan))
    assert_names(page, "power")
    assert not re.search(r"\d [kMG]?(J|Wh)\n", page)
    assert_names(question_in(page), "mycluster.toml", "64")
    assert 'id="timeline"' in page


def test_what_was_set_is_in_the_question_the_command_and_the_drawing(tmp_path: Path) -> None:
    setting = ("--set", "network.link_bandwidth=12 GB/s", "--placement", "contiguous")
    page = page_of(answered(tmp_path / "a.json", *FRONTIER, *setting))
    changes = "network.link_bandwidth=12 GB/s, placement=contiguous"
    assert_names(question_in(page), "16", "frontier", changes)
    command = f"{COMMAND} --set 'network.link_bandwidth=12 GB/s' --placement contiguous"
    assert command in page
    assert 'id="timeline"' in page


def test_answers_that_differ_in_a_setting_are_labelled_by_it(tmp_path: Path) -> None:
    usual = answered(tmp_path / "a.json", *FRONTIER)
    changed = answered(tmp_path / "b.json", *FRONTIER, "--set", "device.launch=30 us")
    found = read_answers([usual, changed]).predictions
    assert labels(found) == ["usual device.launch", "device.launch=30 us"]
    assert scaling_lines(ladders_of(Answers(found))) == {}


def test_a_label_breaks_into_lines_and_a_long_value_loses_its_middle(tmp_path: Path) -> None:
    hosts = "hosts:frontier[00001-00002,00101-00102,00201-00202,00301-00302]"
    setting = ("--set", "network.link_bandwidth=12 GB/s", "--set", "device.launch=30 us")
    usual = answered(tmp_path / "a.json", *FRONTIER)
    changed = answered(tmp_path / "b.json", *FRONTIER, *setting, "--placement", hosts)
    _, label = labels(read_answers([usual, changed]).predictions)
    assert label.splitlines() == [
        "network.link_bandwidth=12 GB/s,",
        "device.launch=30 us,",
        "placement=hosts:frontier[00…202,00301-00302]",
    ]


def test_published_kernels_are_said_and_drawn_with_and_measured_ones_are_not(
    tmp_path: Path,
) -> None:
    words = ("predict", "tiny-1m", "-m", "perlmutter", *TINY, "--compute", "profile")
    path = answered(tmp_path / "a.json", *words)
    page = page_of(path)
    assert "-m perlmutter -n 16 --stack simgpt --plan z=4,dp=4 --batch 16 --compute profile" in page
    assert 'id="timeline"' in page
    record = json.loads(path.read_text(encoding="utf-8"))
    record["asked"]["compute"] = "measured"
    path.write_text(json.dumps(record), encoding="utf-8")
    page = page_of(path)
    assert "--compute measured" in page
    assert 'id="timeline"' not in page


def test_a_copied_machine_is_named_by_its_file_and_drawn_while_it_is_the_same(
    tmp_path: Path,
) -> None:
    """A copy of frontier with slower kernels has its name, but must not pass for it."""
    own = tmp_path / "myfr.toml"
    text = Path("topologies/machines/frontier.toml").read_text(encoding="utf-8")
    own.write_text(text, encoding="utf-8")
    words = ("predict", "tiny-1m", "-m", str(own), *TINY)
    path = answered(tmp_path / "a.json", *words)
    page = page_of(path)
    assert_names(question_in(page), "16", "frontier (myfr.toml)")
    assert f"simgpt predict tiny-1m -m {own} -n 16 --stack simgpt --plan" in page
    assert 'id="timeline"' in page
    changed = answered(tmp_path / "b.json", *words, "--set", "device.launch=30 us")
    found, other, usual = read_answers(
        [path, changed, answered(tmp_path / "c.json", *FRONTIER)]
    ).predictions
    assert (is_usual(found.asked), is_usual(usual.asked)) == (False, True)
    assert labels([found, other, usual]) == [
        "frontier (myfr.toml), usual device.launch",
        "frontier (myfr.toml), device.launch=30 us",
        "frontier, usual device.launch",
    ]
    own.write_text(text + "\n# changed\n", encoding="utf-8")
    page = page_of(path)
    assert 'id="timeline"' not in page
    said = simgpt("report", str(path), "-o", str(tmp_path / "c.html"))
    assert said.status == 0
    *_, why = said.err.splitlines()
    assert_names(why, str(own))
    assert why in page
    own.unlink()
    page = page_of(path)
    assert 'id="timeline"' not in page
    assert why not in page  # but another reason


def test_a_model_of_ones_own_is_named_by_its_file_and_drawn(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text("layers = 4\nhidden = 64\nheads = 4\nsequence = 64\nvocab = 256\n", "utf-8")
    page = page_of(answered(tmp_path / "a.json", "predict", str(own), *FRONTIER[2:]))
    assert_names(question_in(page), "mine.toml", "16")
    assert f"simgpt predict {own} -m frontier" in page
    assert 'id="timeline"' in page


@pytest.mark.slow
@pytest.mark.usefixtures("few_numbers")
def test_why_is_reported_with_the_command_that_was_run(tmp_path: Path) -> None:
    path = answered(tmp_path / "why.json", "why", *FRONTIER[1:])
    page = page_of(path)
    assert f"simgpt why tiny-1m -m frontier {' '.join(TINY)} --json -o {path}" in page
    assert COMMAND in page


def test_training_is_told_of_as_predict_tells_it(tmp_path: Path) -> None:
    said = simgpt(*FRONTIER, "--tokens", "300B").out
    days = next(line.split("  ")[-1].strip() for line in said.splitlines() if "break" in line)
    page = page_of(answered(tmp_path / "a.json", *FRONTIER, "--tokens", "300B"))
    assert_names(page, "300 B")
    assert days in page
    assert f"{COMMAND} --tokens 300000000000" in page


@pytest.mark.slow
def test_a_step_of_a_stack_in_fp8_with_context_parallelism_is_asked_again_as_it_was(
    tmp_path: Path,
) -> None:
    """The precision is the stack's: the plan in the answer does not have it."""
    plan = ("--plan", "tp=2,cp=2,dp=rest,mbs=1,precision=fp8", "--batch", "16")
    words = ("llama-3.1-8b", "-m", "dgx-h100", "-n", "16", "--stack", "megatron-core", *plan)
    path = answered(tmp_path / "a.json", "predict", *words)
    page = page_of(path)
    assert_names(question_in(page), "dgx-h100", "stack=megatron-core", "precision=fp8")
    assert 'id="timeline"' in page
    (found,) = read_answers([path]).predictions
    assert (found.asked["stack"], is_fp8(found.asked)) == ("megatron-core", True)
    command = ASKING.command_of(found.asked)
    assert command in page
    assert "cp=2" in command
    assert "precision=fp8" in command
    again = answered(tmp_path / "b.json", *shlex.split(command)[1:])
    steps = [json.loads(each.read_text(encoding="utf-8"))["step_s"] for each in (path, again)]
    assert steps[0] == steps[1]


def test_other_questions_on_the_page_have_their_own_sections(tmp_path: Path) -> None:
    small = answered(tmp_path / "a.json", *FRONTIER)
    large = answered(tmp_path / "b.json", *FRONTIER, "-n", "32", "--batch", "32")
    page = page_of(small, large)
    questions = [line for line in page.splitlines() if line.endswith("?")]
    assert len(questions) == 2 * len(set(questions)) == 4  # in the contents and above each section
    for devices in ("16", "32"):
        assert any(f" {devices} " in each for each in questions)


@pytest.mark.parametrize(("key", "wrong"), [("left", "half"), ("with_remedy", "x"), ("name", 3)])
def test_a_waterfall_that_is_not_one_is_refused_by_the_key(
    tmp_path: Path, key: str, wrong: Any
) -> None:
    loss = {"name": "attention efficiency", "remedy": "", "left": 0.5, "with_remedy": None}
    waterfall = {"counts": "full", "losses": [loss | {key: wrong}]}
    changed = {"sentence": "", "along": "", "path_basis": "", "mfu_waterfall": waterfall}
    changed |= {name: [] for name in WHY_ROWS}
    path = answered(tmp_path / "a.json", *FRONTIER)
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(record | {"why": changed}), encoding="utf-8")
    said = simgpt("report", str(path), "-o", str(tmp_path / "page.html"))
    assert said.status == 2
    assert_names(said.err, "mfu_waterfall", key)


def test_a_page_about_a_plan_of_axonn_speaks_of_its_axes(tmp_path: Path) -> None:
    words = ("tiny-1m", "-m", "frontier", "-n", "16", "--plan", "x=2,z=4,dp=rest", "--batch", "16")
    file = answered(tmp_path / "a.json", "predict", *words)
    (found,) = read_answers([file]).predictions
    assert "x" in found.breakdown_s
    assert "tp" not in "+".join(found.breakdown_s).split("+")
    page = page_of(file)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    data = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    assert not re.search(r"\btp\b", page + data)
    assert '"name": "x"' in data.replace('"name":"x"', '"name": "x"')
