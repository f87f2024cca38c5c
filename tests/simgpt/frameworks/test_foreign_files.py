"""Files of many projects: those of other frameworks are refused by name, and none is mistaken."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from simgpt.frameworks.importing import imported
from simgpt.frameworks.reading import FrameworkError
from tests.messages import names

FILES = Path(__file__).resolve().parents[1] / "foreign_files"
EXPECTED = tomllib.loads((FILES / "expected.toml").read_text(encoding="utf-8"))
HAVE_DEVICES = 16


@pytest.mark.parametrize("name", EXPECTED["rejected"])
def test_a_file_of_another_framework_is_refused_by_name(name: str) -> None:
    with pytest.raises(FrameworkError) as error:
        imported([FILES / name], devices=HAVE_DEVICES)
    assert EXPECTED["rejected"][name] in str(error.value).replace(name, "")


@pytest.mark.parametrize("name", EXPECTED["programs"])
def test_a_program_in_python_is_refused_by_the_name_of_its_framework(
    name: str, tmp_path: Path
) -> None:
    program = EXPECTED["programs"][name]
    (tmp_path / "config.py").write_text(program["text"], encoding="utf-8")
    with pytest.raises(FrameworkError, check=names(program["rejected"])):
        imported([tmp_path / "config.py"])


@pytest.mark.parametrize("name", EXPECTED["read"])
def test_a_file_of_a_framework_that_is_read_says_its_sizes(name: str) -> None:
    expected: dict[str, Any] = EXPECTED["read"][name]
    question = imported([FILES / name], devices=None if "devices" in expected else HAVE_DEVICES)
    assert question.frameworks == (expected["as"],)
    assert question.refused == ()
    assert {key: question.plan.get(key) for key in expected["plan"]} == expected["plan"]
    for key in ("devices", "batch", "model"):
        if key in expected:
            assert getattr(question.question, key) == expected[key]


def test_every_file_is_in_the_table() -> None:
    named = {*EXPECTED["rejected"], *EXPECTED["read"], "expected.toml"}
    assert {path.name for path in FILES.iterdir()} == named
