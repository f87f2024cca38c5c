"""The documentation as a site, without building it: navigation, links, anchors, generated pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path, PurePosixPath
from posixpath import normpath
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from docs.reference import SOURCE_PATH, anchor, linked, on_env, reference_pages
from simgpt.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
WRITTEN = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
    if path.parent.name != "samples"
}
CODE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*?)(?: \{ #([\w-]+) \})?$", re.MULTILINE)


def leaves(entry: Any) -> Iterator[str]:
    """The files of a navigation, in their order."""
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from leaves(below)


def slug(heading: str) -> str:
    """A heading's anchor, as Python-Markdown makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def anchors(text: str) -> set[str]:
    found = HEADING.findall(FENCED.sub("", text))
    return {given or slug(heading) for heading, given in found}


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return reference_pages()


def broken(name: str, text: str, generated: Mapping[str, str]) -> list[str]:
    """The links of a page that lead nowhere."""
    pages, wrong = {**WRITTEN, **generated}, []
    for target in LINK.findall(CODE.sub("", text)):
        path, _, place = target.partition("#")
        if "://" in path:
            continue
        whole = normpath(PurePosixPath(name).parent / path) if path else name
        if whole in pages:
            if place and place not in anchors(pages[whole]):
                wrong.append(target)
        elif place or not (DOCS / whole).exists():
            wrong.append(target)
    return wrong


def test_the_navigation_has_every_page_once(generated: dict[str, str]) -> None:
    pages = [name for name in leaves(SITE["nav"]) if "://" not in name]
    markdown = [name for name in pages if name.endswith(".md")]
    assert sorted(markdown) == sorted((*WRITTEN, *generated))
    assert [name for name in pages if name not in markdown and not (DOCS / name).exists()] == []


@pytest.mark.parametrize("name", WRITTEN)
def test_links_and_anchors_lead_somewhere(name: str, generated: dict[str, str]) -> None:
    assert broken(name, WRITTEN[name], generated) == []
    up = "../" * name.count("/")
    assert broken(name, linked(WRITTEN[name], up), generated) == []


def test_a_link_that_leads_nowhere_is_seen(generated: dict[str, str]) -> None:
    text = "[a](words.md#axes) [b](nix.md) [c](#nix) [d](words.md#glossary) `[e](nix)`\n# Here\n"
    assert broken("index.md", text, generated) == ["words.md#axes", "nix.md", "#nix"]


def test_mentions_of_modules_lead_to_the_reference_but_not_within_code() -> None:
    text = "See `simulator/costs/analytic.py`.\n```text\n`simulator/costs/analytic.py`\n```\n"
    place = "reference/simulator.md#simulator-costs-analytic"
    assert linked(text, "../") == text.replace(
        "See `simulator/costs/analytic.py`", f"See [`simulator/costs/analytic.py`](../{place})"
    )


@pytest.mark.parametrize("name", WRITTEN)
def test_every_module_that_a_page_names_is_in_the_reference(
    name: str, generated: dict[str, str]
) -> None:
    for source in SOURCE_PATH.findall(FENCED.sub("", WRITTEN[name])):
        page = generated[f"reference/{source.partition('/')[0]}.md"]
        assert f"{{ #{anchor(source)} }}" in page, source


def test_the_reference_has_every_command_and_what_a_docstring_says(
    generated: dict[str, str],
) -> None:
    commands = anchors(generated["reference/commands.md"])
    assert {f"simgpt-{name}" for name in COMMANDS} | {"simgpt-validate-seeds"} <= commands
    page = generated["reference/simulator.md"]
    assert "**`attention_s(" in page
    assert "**`AnalyticCosts.seconds(" in page
    assert "**Source:** Dao (FlashAttention-2, arXiv 2307.08691)" in page
    assert "def " not in page
    assert not re.search(r"\{ #[\w-]*_[\w-]* \}", page)  # Python-Markdown reads __ as bold


@pytest.mark.parametrize("name", WRITTEN)
def test_lists_and_tables_have_an_empty_line_before_them(name: str) -> None:
    """GitHub shows them without one, Python-Markdown shows them as running text."""
    lines = FENCED.sub("", WRITTEN[name]).splitlines()
    pairs = list(pairwise(lines))
    before = [above for above, line in pairs if re.match(r"(- |\d+\. |\|)", line)]
    assert [above for above in before if above and not re.match(r"(- |\d+\. |\||  )", above)] == []


def test_one_title_opens_each_page() -> None:
    for name, text in WRITTEN.items():
        titles = re.findall(r"^# .*$", FENCED.sub("", text), re.MULTILINE)
        assert len(titles) == 1, name
        assert text.startswith(titles[0]), name


def test_the_site_asks_no_other_host() -> None:
    assert SITE["theme"]["font"] is False
    assert all((DOCS / style).exists() for style in SITE["extra_css"])
    assert "extra_javascript" not in SITE
    config = SimpleNamespace(extra={"polyfills": ["https://unpkg.com/iframe-worker/shim"]})
    on_env(None, config=config)
    assert config.extra == {}


def test_the_page_on_the_model_names_every_module_whose_formulas_have_a_source() -> None:
    named = set(SOURCE_PATH.findall(WRITTEN["model.md"]))
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for package in ("topologies", "workload", "simulator")
        for path in (ROOT / package).rglob("*.py")
    }
    sources = {name: ast.parse(text) for name, text in texts.items() if "Source:" in text}
    documented = ast.Module, ast.ClassDef, ast.FunctionDef
    found = {
        name
        for name, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, documented) and "Source:" in (ast.get_docstring(node) or "")
    }
    assert len(found) > 25
    assert found - named == set()


def test_a_paper_that_the_page_on_the_model_names_is_named_by_the_module_beside_it() -> None:
    rows = [line for line in WRITTEN["model.md"].splitlines() if line.startswith("| ")]
    checked = 0
    for row in rows:
        modules = SOURCE_PATH.findall(row)
        text = "".join((ROOT / name).read_text(encoding="utf-8") for name in modules)
        papers = re.findall(r"\d{4}\.\d{5}|SC\d\d|eq\. \d|VLDB \d{4}", row) if modules else []
        assert [paper for paper in papers if paper not in text] == [], row
        checked += len(papers)
    assert checked > 12
