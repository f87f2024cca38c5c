"""The page about Python and the notebook show what their code gives."""

from __future__ import annotations

import inspect
import json
import os
import re
import warnings
from pathlib import Path

import pytest

import simgpt as api
from tests.shown_python import compared, rerun_notebook, rerun_page

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, NOTEBOOK = DOCS / "python.md", DOCS / "notebook.ipynb"


def without_searches(text: str) -> str:
    """The page but for the section that searches, whose answer nothing behind it needs."""
    section = re.compile(r"^## Searches.*?(?=^## )", re.MULTILINE | re.DOTALL)
    rest, found = section.subn("", text)
    assert found == 1
    return rest


def test_the_page_about_python_shows_what_a_console_prints_but_for_searches() -> None:
    text = without_searches(PAGE.read_text(encoding="utf-8"))
    pytest.importorskip("pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert rerun_page(text) == text


@pytest.mark.slow
def test_the_page_about_python_shows_what_a_console_prints() -> None:
    text = PAGE.read_text(encoding="utf-8")
    pytest.importorskip("pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        again = rerun_page(text)
    if os.environ.get("SIMGPT_REWRITE"):
        PAGE.write_text(again, encoding="utf-8")
    assert again == PAGE.read_text(encoding="utf-8")


def test_the_page_about_python_has_every_public_name() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in api.__all__ if f"simgpt.{name}" not in text] == []


def test_the_page_about_python_has_no_keyword_that_is_none() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"^\| `simgpt\.(\w+)\((.*?)\)` \|", text, re.MULTILINE)
    assert {name for name, _ in named} == {name for name in api.__all__ if name.islower()} - {
        "__version__"
    }
    for name, arguments in named:
        words = re.findall(r"\w+", re.sub(r"\*+\w+|…", "", arguments))
        assert list(inspect.signature(getattr(api, name)).parameters)[: len(words)] == words


@pytest.mark.slow
def test_the_notebook_shows_what_its_cells_give() -> None:
    pytest.importorskip("pandas")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    again = rerun_notebook(notebook)
    if os.environ.get("SIMGPT_REWRITE"):
        NOTEBOOK.write_text(json.dumps(again, indent=1, ensure_ascii=False) + "\n", "utf-8")
        notebook = again
    assert compared(again) == compared(notebook)
    kinds = {kind for cell in notebook["cells"] for out in cell.get("outputs", ())
             for kind in out["data"]}  # fmt: skip
    assert {"text/plain", "text/html", "image/png"} <= kinds
