"""Paths of a recipe's files, which lie within its checkout: `os.path` and `pathlib`.

Source: Python 3.11, os.path and pathlib.PurePath.
"""

from __future__ import annotations

import posixpath
from typing import Any

from simgpt.frameworks.recipe_code.evaluation import Evaluation
from simgpt.frameworks.recipe_code.values import Builtin, FilePath, Place, unknown

SAME = ("absolute", "resolve", "expanduser")


def text_of(value: Any) -> str | None:
    """A path or its text as text; None for what is neither."""
    if isinstance(value, FilePath):
        return value.text
    return value if isinstance(value, str) else None


def path(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    """`pathlib.Path(…)`."""
    texts = [text_of(each) for each in given]
    known = [each for each in texts if each is not None]
    return FilePath("/".join(known)) if len(known) == len(texts) else unknown("a path", place)


def join(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    """`os.path.join`."""
    found = path(ev, place, given, named)
    return found.text if isinstance(found, FilePath) else found


def is_file(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    """`os.path.isfile` and `exists`, of the checkout's files."""
    text = text_of(given[0]) if given else None
    return unknown("whether a file is there", place) if text is None else _is_there(ev, text)


def _is_there(ev: Evaluation, text: str) -> bool:
    return ev.checkout.file(text) is not None


def folder(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    """`os.path.dirname`."""
    text = text_of(given[0]) if given else None
    return unknown("a folder", place) if text is None else posixpath.dirname(text)


def same(ev: Evaluation, place: Place, given: list[Any], named: dict[str, Any]) -> Any:
    """`os.path.abspath` and `realpath`: paths here are those within the checkout."""
    text = text_of(given[0]) if given else None
    return unknown("a path", place) if text is None else text


def of_path(ev: Evaluation, value: FilePath, name: str) -> Any:
    """An attribute or method of a path; None where none is known."""
    if name in SAME:
        return Builtin(name, lambda place, given, named: value)
    if name == "parent":
        return FilePath(posixpath.dirname(value.text))
    if name in ("name", "stem"):
        base = posixpath.basename(value.text)
        return base if name == "name" else posixpath.splitext(base)[0]
    if name in ("is_file", "exists"):
        return Builtin(name, lambda place, given, named: _is_there(ev, value.text))
    return None
