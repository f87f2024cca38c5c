"""Dialects: the stack of a row, from data/dialects.toml, whose first lines explain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from simulator.stacks import Stack, load_stack
from topologies.files.reading import shipped_toml
from topologies.records import record
from validation.published.runs import PublishedRun

OTHER = "other"  # the stack of rows whose framework nothing is known of


@record(slots=False)
class Dialect:
    """What a row means where it does not say: its stack, with what its notes change of the stack's
    plan, and keys of the model. `noted` has those of the plan, which come before its columns."""

    stack: Stack
    model: Mapping[str, Any]
    noted: Mapping[str, Any]

    @property
    def has_grid(self) -> bool:
        """Whether the stack splits over y and z too."""
        return "y" in self.stack.can["axes"]


def dialect_of(run: PublishedRun) -> Dialect:
    """The first dialect whose words the row has, and its notes."""
    document = dialects()
    chosen: Mapping[str, Any] = next(filter(lambda d: _speaks(d, run), document["dialect"]), {})
    notes = [note for note in document["note"] if _is_noted(note, run)]
    layers = [document["defaults"], _of_activation(run), chosen, *notes]
    model = _merged([layer.get("model", {}) for layer in layers])
    noted = _merged([note.get("plan", {}) for note in notes])
    return Dialect(load_stack(chosen.get("stack", OTHER)), model, noted)


def _of_activation(run: PublishedRun) -> Mapping[str, Any]:
    """What a layer is like, by its activation: Llama's has no biases, RMSNorm and rope, and Qwen3's
    norms of queries and keys besides (Qwen3 Technical Report, 2505.09388, section 2)."""
    if run.text("activation") == "swiglu":
        model: dict[str, Any] = {
            "activation": "swiglu",
            "norm": "rmsnorm",
            "positions": "rope",
            "biases": False,
        }
        if says(run.text("model").lower(), "qwen3"):
            model |= {"qk_norm": True, "norm_eps": 1e-6}
        return {"model": model}
    if run.text("activation") == "squared-relu":
        return {"model": {"positions": "rope", "biases": False}}
    return {}


def _is_noted(note: Mapping[str, Any], run: PublishedRun) -> bool:
    """Whether a row's notes have a note's words, and its columns those that the note asks for."""
    when = note.get("when", {}).items()
    said = all(says(run.text(column).lower(), words) for column, words in when)
    return said and note.get("has", "") in run.text("notes")


def _speaks(dialect: Mapping[str, Any], run: PublishedRun) -> bool:
    when = dialect["when"].items()
    framework = run.text("framework").lower()
    said = all(says(run.text(column).lower(), words) for column, words in when)
    timely = "before" not in dialect or "" < run.date < dialect["before"]
    return said and timely and not any(word in framework for word in dialect.get("unless", ()))


def says(cell: str, words: str | Sequence[str]) -> bool:
    """Whether the words, or one of several, are in the cell, or all of it where they begin with =.

    >>> says("nemo / megatron-core", ["megatron-bridge", "nemo"]), says("nemo-2", "=nemo")
    (True, False)
    """
    if not isinstance(words, str):
        return any(says(cell, each) for each in words)
    return cell == words[1:] if words.startswith("=") else words in cell


def _merged(tables: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for table in tables for key, value in table.items()}


@cache
def dialects() -> dict[str, Any]:
    """The file's tables."""
    return shipped_toml("validation", "data/dialects.toml")
