"""Single fields of a model from their texts: `sequence=4096`, `layers=96,hidden=12288,…`."""

from __future__ import annotations

import difflib
from typing import Any

from topologies.files.printable import shown
from workload.descriptions.from_table import WORDS, model_from_table
from workload.errors import ModelError
from workload.gpt import GPT
from workload.model.fields import KEYS
from workload.models.documents import text_of_lengths
from workload.plan_text import split_words
from workload.words.foreign_words import MODEL_WORDS, plain

KINDS = {key: each.kind for key, each in KEYS.items()}
_SWITCH = {"true": True, "false": False}


def model_from_text(text: str) -> GPT:
    """The model of a text with fields of `GPT`, as a plan's text has its keys; it is called by the
    text, unless that gives it a name.

    >>> model_from_text("layers=96,hidden=12288,heads=96,sequence=2048,vocab=51200").ffn
    49152
    """
    words = split_words(text, "model", "layers=96,hidden=12288", ModelError)
    table = {key: field_value(key, word) for key, word in words.items()}
    return model_from_table(table, "the model", name=text)


def field_value(key: str, given: Any) -> Any:
    """The value of a model's field in its kind, from its text or from a value of that kind.

    A ModelError says that there is no such field, or what it should be.

    >>> field_value("layers", "96"), field_value("tied", "false")
    (96, False)
    """
    if key not in KINDS:
        ours = MODEL_WORDS.get(plain(key))
        near = [ours] if ours else difflib.get_close_matches(key, KINDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(KINDS)}"
        raise ModelError(f"unknown key {shown(key)!r} of a model; {hint}")
    kind = KINDS[key]
    try:
        if kind == "bool":
            return _SWITCH[str(given).lower()]
        if kind == "str" and isinstance(given, str):
            return given
        if key == "documents" and isinstance(given, list):
            return text_of_lengths(given)
        if kind == "int" and not isinstance(given, float | bool):
            return int(given)
        if kind == "float" and not isinstance(given, bool):
            return float(given)
    except (KeyError, ValueError, TypeError):
        pass
    raise ModelError(f"{key} = {given} must be {WORDS[kind]}")
