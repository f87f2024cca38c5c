"""Dialects: a framework's defaults, read from data/dialects.toml, whose first lines explain it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from topologies.files.reading import shipped_toml
from validation.published.runs import PublishedRun

SECTIONS = ("plan", "model", "kernels")


@dataclass(frozen=True)
class Dialect:
    """What a row means where it does not say: keys of plan, model and kernels.

    `noted` has the keys of a plan that the row's notes give, which come before its columns.
    `has_grid` says that the framework splits over y and z too.
    """

    name: str
    plan: Mapping[str, Any]
    model: Mapping[str, Any]
    kernels: Mapping[str, Any]
    noted: Mapping[str, Any]
    has_grid: bool = False


def dialect_of(run: PublishedRun) -> Dialect:
    """The first dialect whose words the row has, upon the defaults, and its notes upon both."""
    document = dialects()
    chosen: Mapping[str, Any] = next(filter(lambda d: _speaks(d, run), document["dialect"]), {})
    notes = [note for note in document["note"] if note["has"] in run.text("notes")]
    layers = [document["defaults"], _of_activation(run), chosen, *notes]
    merged = {name: _merged([layer.get(name, {}) for layer in layers]) for name in SECTIONS}
    noted = _merged([note.get("plan", {}) for note in notes])
    grid = bool(chosen.get("grid", False))
    return Dialect(chosen.get("name", "no dialect"), **merged, noted=noted, has_grid=grid)


def _of_activation(run: PublishedRun) -> Mapping[str, Any]:
    """What a layer is like, by its activation: Llama's has no biases, RMSNorm and rope."""
    if run.text("activation") == "swiglu":
        model = {"activation": "swiglu", "norm": "rmsnorm", "positions": "rope", "biases": False}
        return {"model": model}
    if run.text("activation") == "squared-relu":
        return {"model": {"positions": "rope", "biases": False}}
    return {}


def _speaks(dialect: Mapping[str, Any], run: PublishedRun) -> bool:
    when = dialect["when"].items()
    framework = run.text("framework").lower()
    said = all(_says(run.text(column).lower(), words) for column, words in when)
    return said and not any(word in framework for word in dialect.get("unless", ()))


def _says(cell: str, words: str) -> bool:
    """Whether the words are in the cell, or are all of it where they begin with =."""
    return cell == words[1:] if words.startswith("=") else words in cell


def _merged(tables: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for table in tables for key, value in table.items()}


@cache
def dialects() -> dict[str, Any]:
    """The file's tables."""
    return shipped_toml("validation", "data/dialects.toml")
