"""What is wrong with an answer, in words that group alike failures."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NoReturn

from simgpt.command_lines import is_command
from tests.simgpt.fuzz.child import Said
from tests.simgpt.fuzz.draw import Draw
from tests.simgpt.fuzz.values import MARK

GOOD = (0, 2, 3, 4, 5)
TRAINED, NOT_FINITE = ("checkpoint", "weights"), 6  # a loss of weights that were drawn
LONGEST_SENTENCE = 2100
CONTROL = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
PYTHON = re.compile(r"<class '|object at 0x|Errno|\b[A-Z]\w+Error\b|\bNoneType\b")
OWN_SCRIPTS, OWN_STYLES = 3, 60  # timeline, its data, tables; each figure has a style


def wrong_with(draw: Draw, said: Said, folder: Path) -> str:
    """The first thing that is wrong; empty if nothing is."""
    return next(filter(None, _wrongs(draw, said, folder)), "")


def _wrongs(draw: Draw, said: Said, folder: Path) -> Iterator[str]:
    yield said.raised
    if said.status not in (*GOOD, *((NOT_FINITE,) if draw.kind in TRAINED else ())):
        yield f"status {said.status}: {(said.err or said.out)[-160:].strip()!r}"
    yield _words(draw, said, folder)
    answers = "--json" in draw.args and not {"-o", "--help", "--version"} & set(draw.args)
    if said.status in (0, 3) and answers and said.out:
        yield _json(draw, said.out)
    if draw.kind == "folder" and said.status == 0:
        results = (folder / "r/results.jsonl").read_bytes()
        if results != draw.bases["results.jsonl"]:
            yield "a damaged folder was taken for whole"
    if draw.kind == "cache" and said.status != 0:
        yield f"what was kept ends a prediction with status {said.status}"
    page = folder / "page.html"
    if draw.kind == "report" and page.is_file():
        yield page_wrong(page.read_text(encoding="utf-8"))
    if drafts := list(folder.rglob(".simgpt-*")):
        yield f"{len(drafts)} drafts are left"


def _words(draw: Draw, said: Said, folder: Path) -> str:
    """What is wrong with what reaches the terminal."""
    if "Traceback" in said.err + said.out:
        return "a traceback is printed"
    if warned := re.search(r"\w*Warning: .*", said.err):
        return f"warning: {warned[0][:120]}"
    if CONTROL.search(said.out + said.err):
        return "words: control characters reach the terminal"
    lines = said.err.splitlines()
    sentences = [line for line in lines if line.startswith("simgpt: ")]
    if said.status == 2 and (len(sentences) != 1 or lines[-1] != sentences[0]):
        return f"words: {len(sentences)} sentences on stderr: {said.err[-100:]!r}"
    if len(sentences) > 1:
        return f"words: {len(sentences)} sentences on stderr"
    for line in sentences:
        if len(line) > LONGEST_SENTENCE:
            return "words: a sentence of thousands of characters"
        if PYTHON.search(line):
            return f"words: Python speaks: {line[:140]!r}"
    if said.status in (3, 5) and not (said.err or said.out or (folder / "out.json").exists()):
        return f"status {said.status} without a reason"
    return ""


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not strict JSON")


def _json(draw: Draw, text: str) -> str:
    try:
        found = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        return f"the JSON is not strict: {error}"
    for row in _predictions(found):
        if wrong := _prediction(row):
            return wrong
    return ""


def _predictions(found: Any) -> Iterator[Mapping[str, Any]]:
    """Every prediction of an answer."""
    if isinstance(found, dict):
        if {"step_s", "mfu", "breakdown_s"} <= found.keys():
            yield found
        for value in found.values():
            yield from _predictions(value)
    elif isinstance(found, list):
        for value in found:
            yield from _predictions(value)


def _prediction(row: Mapping[str, Any]) -> str:
    step_s, mfu, hfu = row["step_s"], row["mfu"], row["hfu"]
    if not (isinstance(step_s, int | float) and step_s > 0 and math.isfinite(step_s)):
        return f"step_s is {step_s}"
    if mfu is None or hfu is None or not 0 < mfu <= hfu * (1 + 1e-9) <= 1 + 1e-6:
        return f"MFU {mfu}, HFU {hfu}"
    if abs(sum(row["breakdown_s"].values()) - step_s) > 1e-6 * step_s:
        return "the breakdown does not sum to the step"
    return "" if row["memory"]["peak_bytes"] > 0 else "memory is not positive"


class _Page(HTMLParser):
    """A page's elements, and those that a name put there."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: Counter[str] = Counter()
        self.bad: list[str] = []
        self.commands: list[str] = []
        self._in_command = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        self._in_command = tag == "pre"
        self.commands += [""] * self._in_command
        for name, value in attrs:
            if name.startswith("on") or MARK in name or (name == "style" and MARK in (value or "")):
                self.bad.append(f"<{tag} {name}>")
            is_address = name in ("href", "src", "xlink:href")
            own = (value or "").startswith("http://www.w3.org")
            foreign = re.match(r"\s*(javascript|https?|//|file)", value or "", re.IGNORECASE)
            if is_address and foreign and not own:
                self.bad.append(f"<{tag} {name}={value!r}>")
        if tag in ("img", "iframe", "object", "embed", "base") or (tag == "b" and attrs):
            self.bad.append(f"<{tag}>")

    def handle_data(self, data: str) -> None:
        if self._in_command:
            self.commands[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._in_command = False


def page_wrong(text: str) -> str:
    """What a name put into a page that is no text, or that a reader would paste into a shell."""
    page = _Page()
    page.feed(text)
    page.close()
    page.bad += [f"<pre>{each[:60]}" for each in page.commands if not is_command(each)]
    many = page.found["script"] > OWN_SCRIPTS or page.found["style"] > OWN_STYLES
    counts = {tag: page.found[tag] for tag in ("script", "style")}
    return f"the page has {page.bad[:3]} {counts}" * bool(page.bad or many)
