"""The files in the documentation are what it says they are, and predict."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from simgpt.studies.inputs import inputs_of
from simgpt.studies.study import read_study
from simgpt.studies.sweep_rows import sweep
from simulator.explain.error_budget import ERRORS
from simulator.predict import predict
from topologies.machine_files import load_machine
from workload.descriptions.configs.families import row_of, tables
from workload.descriptions.read import described_model
from workload.errors import PlanCannotRunError
from workload.exchange.table import DISPATCHERS
from workload.gpt import GPT, find_model
from workload.lowering import lower
from workload.model.fields import KEYS
from workload.plan_text import parse_plan

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "your-cluster.md"
STUDIES = DOCS / "studies.md"
MODELS = DOCS / "models.md"
LLAMA = find_model("tiny-llama-1m")
# What each row of the table in models.md is of, and what each column asks for.
OF_LAYERS = {
    "latent attention": find_model("tiny-deepseek-2m"),
    "windows, sinks": LLAMA.changed(window=16, global_every=2, sinks=True),
    "a gated output": LLAMA.changed(output_gate=True),
    "packed documents": LLAMA.changed(document=32),
    "experts": find_model("tiny-mixtral-2m"),
    "experts on latent columns": find_model("tiny-mixtral-2m").changed(expert_latent=64),
    "a second token": LLAMA.changed(mtp_layers=1),
    "hybrids": LLAMA.changed(pattern="M-*-", ssm_heads=8, ssm_width=16, ssm_state=16, ssm_groups=2),
}
IN_PLANS = {
    "`y`": "y=2",
    "`cp`": "cp=2",
    "recipes": "recipe=mxfp8",
    "`attention=unfused`": "attention=unfused",
}


def test_the_documented_cluster_can_be_predicted_on(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    path = tmp_path / "mycluster.toml"
    path.write_text(found[1], encoding="utf-8")
    machine = load_machine(str(path))
    assert (machine.devices, machine.devices_per_node) == (64, 4)
    plan = parse_plan("z=8,dp=rest,recompute=full", devices=64, batch=512)
    assert predict(find_model("gpt-5b"), plan, machine).memory.fits


def test_the_documented_file_that_builds_on_another_machine_is_one(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Your own values")[2]
    found = re.search(r"(?:^    .*\n|^\n)+", text.partition("takes it:\n")[2], re.MULTILINE)
    assert found is not None
    path = tmp_path / "lab.toml"
    path.write_text(found[0], encoding="utf-8")
    machine = load_machine(str(path))
    assert (machine.devices, machine.node.nics.count) == (128, 4)
    assert (machine.device.memory_bytes, machine.device.matmul.sustained) == (143771 * 2**20, 0.926)


@pytest.mark.parametrize(
    ("name", "statuses"),
    [("splits.toml", {"ok": 4, "infeasible": 2}), ("ladder.toml", {"ok": 2})],
)
def test_the_documented_studies_can_be_swept(
    name: str, statuses: dict[str, int], tmp_path: Path
) -> None:
    text = STUDIES.read_text(encoding="utf-8")
    found = re.search(rf"<!-- study: {name} -->\n```toml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    (tmp_path / name).write_text(found[1], encoding="utf-8")
    study = read_study(tmp_path / name)
    rows = list(sweep(study, inputs_of(study), lambda _: None))
    assert Counter(row["status"] for row in rows) == statuses


def test_the_documented_points_can_be_listed(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(\[\[point.*?)```", STUDIES.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    path = tmp_path / "points.toml"
    path.write_text('machine = "frontier"\nbatch = 8192\n' + found[1], encoding="utf-8")
    assert [point["devices"] for point in read_study(path).points()] == [512, 8192]


def test_the_documented_model_has_all_fields_and_is_the_preset_that_it_describes(
    tmp_path: Path,
) -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- model: mine.toml -->\n```toml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    (tmp_path / "mine.toml").write_text(found[1], encoding="utf-8")
    assert set(tomllib.loads(found[1])) == set(KEYS)
    own = described_model(str(tmp_path / "mine.toml")).gpt
    assert own == replace(find_model("llama-3-8b"), name="mine", source="our next run")


OWN_KEYS = ("gpt2", "llama", "mixtral", "qwen3_moe", "gpt_oss", "nemotron_h", "deepseek_v3")


def test_the_documented_keys_of_configs_are_those_that_are_read() -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    rows = tables()["families"]
    for family in OWN_KEYS:
        for field, keys in row_of(rows, family)["keys"].items():
            assert re.search(rf"\| `{field}` \|.*`{keys[0]}`", text), (field, keys)


ROOT = DOCS.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")))
PACKAGES = "topologies|workload|simulator|executor|validation|simgpt|tests|docs|benchmarks|tools"
PATH = re.compile(rf"`((?:{PACKAGES})/[\w./*-]+)`")
OF_MEGATRON = "tools/preprocess_data.py"


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_in_the_repository_is_there(page: Path) -> None:
    named = {*PATH.findall(prose(page))} - {OF_MEGATRON}
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []


def test_the_tour_of_the_code_is_read_in_ten_minutes() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    tour = text[text.index("<!-- tour -->") : text.index("<!-- end of tour -->")]
    files = [ROOT / name for name in PATH.findall(tour) if name.endswith(".py")]
    assert len(files) >= 8
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert lines <= 1500


def test_the_page_on_reasons_has_the_errors_that_a_confidence_stands_for() -> None:
    text = (DOCS / "why-and-reports.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\| (\d+) % \| (\d+) % \|$", text, re.MULTILINE)
    said = {level: (int(rate) / 100, int(duration) / 100) for level, rate, duration in rows}
    assert said == ERRORS


@pytest.mark.parametrize("layers", OF_LAYERS)
def test_the_page_on_models_says_which_plans_are_refused(layers: str) -> None:
    lines = MODELS.read_text(encoding="utf-8").splitlines()
    (head,) = (line for line in lines if line.startswith("| layers | `y` |"))
    (row,) = (line for line in lines if line.startswith(f"| [{layers}]"))
    said = dict(zip(_cells(head), _cells(row), strict=True))
    assert {asked: said[asked] == "yes" for asked in IN_PLANS} == {
        asked: _is_lowered(OF_LAYERS[layers], words) for asked, words in IN_PLANS.items()
    }


def test_the_page_on_models_says_which_dispatchers_are_searched_and_want_a_capacity() -> None:
    rows = [line for line in MODELS.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    rows = [row for row in rows if "needed" in _cells(row) or "either" in _cells(row)]
    said = {re.findall(r"`(\w+)`", row)[0]: tuple(_cells(row)[-2:]) for row in rows}
    assert said == {
        name: (
            "needed" if each.with_places else "either",
            "no" if each.with_places else "yes",
        )
        for name, each in DISPATCHERS.items()
    }


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def _is_lowered(gpt: GPT, words: str) -> bool:
    try:
        lower(gpt, parse_plan(f"{words},dp=2,batch=4,mbs=1"))
    except PlanCannotRunError:
        return False
    return True
