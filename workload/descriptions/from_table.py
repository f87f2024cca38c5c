"""Models from files and tables of a user: their keys checked, what is left out as GPT-2 has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topologies.files.printable import path_shown, printable, shown
from topologies.files.reading import UserFile
from workload.errors import ModelError
from workload.gpt import GPT
from workload.model.fields import GATED, KEYS
from workload.models.documents import text_of_lengths

WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
MODEL_BYTES = 8 * 2**20  # a config.json may name each linear that is not quantised
MODEL_FILE = UserFile("model", ModelError, MODEL_BYTES, constants=True)


def read_model(path: Path) -> GPT:
    """A model from a TOML or JSON file with the keys of `GPT`; `name` defaults to the file's."""
    return model_from_table(MODEL_FILE.document(path), path_shown(path), name=path.stem)


def model_from_table(table: Any, origin: str, *, name: str) -> GPT:
    """The model of a table with the keys of `GPT`, which `origin` names in sentences.

    `ffn` defaults to 4 hidden, except with "swiglu", where models differ; all else that may be left
    out is as GPT-2 has it.
    """
    if not isinstance(table, dict):
        raise ModelError(f"{origin} is not a model: it should be a table of keys such as layers")
    table = _as_texts(table)
    _check_kinds(table, origin)
    needed = ["layers", "hidden", "heads", "sequence", "vocab"]
    needed += ["ffn"] if table.get("activation") in GATED else []
    missing = [key for key in needed if key not in table]
    if missing:
        raise ModelError(f"{origin}: {', '.join(missing)} missing")
    words = {key: printable(value) for key, value in table.items() if isinstance(value, str)}
    words["name"] = shown(table.get("name", name))
    return GPT.of(**{"ffn": 4 * table["hidden"], **table, **words})


def with_fields(gpt: GPT, given: Mapping[str, Any]) -> GPT:
    """The model with other values of some fields; an MLP of four times the width stays so.

    >>> from workload.gpt import find_model
    >>> with_fields(find_model("gpt-5b"), {"hidden": 1024}).ffn
    4096
    """
    given = _as_texts(given)
    _check_kinds(given, gpt.name)
    wide = "hidden" in given and "ffn" not in given and gpt.ffn == 4 * gpt.hidden
    return gpt.changed(**given, **({"ffn": 4 * given["hidden"]} if wide else {}))


def _as_texts(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the text of a list of documents' lengths in its place."""
    own = table.get("documents")
    return {**table, **({"documents": text_of_lengths(own)} if isinstance(own, list) else {})}


def _check_kinds(table: Mapping[str, Any], origin: str) -> None:
    kinds = {key: each.kind for key, each in KEYS.items()}
    for key, value in table.items():
        if key not in kinds:
            raise ModelError(f"{origin}: unknown key {key!r}; known: {', '.join(kinds)}")
        if type(value).__name__ != kinds[key]:
            raise ModelError(f"{origin}: {key} = {value!r} must be {WORDS[kinds[key]]}")
