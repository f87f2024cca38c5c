"""Settings of public scripts are the step that their framework runs, worked out by hand.

Round trips share the exporter's behaviour: what a writer always spells out, a default never
meets. These files leave out what people leave out (`tests/simgpt/real_files`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.imported_job import ImportedJob
from simgpt.frameworks.importing import imported
from simulator.stacks import load_stack
from simulator.stacks.job import job_of
from topologies.session import Session

FOLDER = Path(__file__).resolve().parents[1] / "real_files"
CASES = {
    f"{path.stem}: {name}": case
    for path in sorted(FOLDER.glob("*.toml"))
    for name, case in tomllib.loads(path.read_text(encoding="utf-8")).items()
}


@pytest.fixture(autouse=True, scope="module")
def session() -> Iterator[None]:
    with Session():
        yield


def question_of(case: dict[str, Any], folder: Path) -> ImportedJob:
    paths = [folder / name for name in case["files"]]
    for path in paths:
        path.write_text(case["files"][path.name], encoding="utf-8")
    return imported(
        paths,
        devices=case.get("devices"),
        model=case.get("given"),
        changed=case.get("changed"),
    )


@pytest.mark.parametrize("name", CASES)
def test_a_public_script_is_the_step_that_its_framework_runs(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    question = question_of(case, tmp_path)
    assert question.refused == ()
    plan = dict(question.plan)
    assert plan.pop("dp", "rest") == "rest"
    assert plan == case["plan"]
    assert question.question.batch == case.get("batch")
    assert question.question.stack == case.get("stack", question.question.stack)
    assert question.gpt is not None
    model = case.get("model", {})
    assert {field: question.gpt.value(field) for field in model} == model
    if "batch" in case:
        job = job_of(
            question.gpt,
            dict(question.plan),
            load_stack(question.question.stack),
            devices=question.question.devices,
            batch=question.question.batch,
        ).plan
        assert job.dp == case["ranks"]
        assert job.batch // (job.dp * job.mbs) == case["steps"]


def test_each_file_names_its_source_and_commit() -> None:
    for case in CASES.values():
        repository, at, rest = case["source"].partition("@")
        assert at
        assert repository.count("/") == 1
        assert len(rest.partition(",")[0]) == 7
