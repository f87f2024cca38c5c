"""Which family's a `config.json` of Hugging Face is, and where in it the language model stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

from topologies.files.printable import shown
from workload.errors import ModelError
from workload.gpt import GPT, find_model, model_names
from workload.models.hybrids.pattern import EXPERTS

LANGUAGE = ("text_config", "llm_config", "language_config")  # of models that see or hear, too
SHARED = "tie_word_embeddings"  # a switch of the whole model, and of its language model
SIZES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
}
PATTERN, BLOCKS, LAYERS = "hybrid_override_pattern", "layers_block_type", "num_hidden_layers"
LETTERS = {"mamba": "M", "mlp": "-", "attention": "*", "moe": EXPERTS}  # of layers in a pattern
FEWEST = 2  # of these sizes, by which a preset is known


def of_language(
    document: Mapping[str, Any], origin: str, tables: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str, list[str]]:
    """The config of the language model, its name in sentences, and which others are left out.

    Models of several senses have it one level down, unless their family is read as it is.
    """
    within = next((key for key in LANGUAGE if isinstance(document.get(key), dict)), None)
    if within is None or document.get("model_type") in tables["families"]:
        return document, origin, []
    inner = dict(document[within])
    if SHARED in document:
        inner.setdefault(SHARED, document[SHARED])
    left_out = [key for key, value in document.items() if isinstance(value, dict) and key != within]
    return inner, f"{origin}, {within}", [shown(key) for key in left_out]


def with_pattern(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the letters of a hybrid's layers where it has their words."""
    words = document.get(BLOCKS)
    if document.get(PATTERN) or not isinstance(words, list) or not words:
        return document
    if any(not isinstance(word, str) or word not in LETTERS for word in words):
        return document
    pattern = "".join(LETTERS[word] for word in words)
    return {**document, PATTERN: pattern, LAYERS: document.get(LAYERS, len(words))}


def family_of(document: Mapping[str, Any], origin: str, tables: Mapping[str, Any]) -> str:
    """The family of a config by its model_type, or by its class; a ModelError if it is not read,
    which names the preset with its sizes, if there is one."""
    classes = _classes(document, origin)
    found = document.get("model_type") or next(
        (
            family
            for family, table in tables["families"].items()
            if set(classes) & set(table["architectures"])
        ),
        ", ".join(classes),
    )
    if not isinstance(found, str):
        raise ModelError(f"{origin}: model_type = {shown(found)} must be text")
    found = str(tables["same_as"].get(found, found))
    preset = _preset(document, found)
    for reason, families in tables["refused"].items():
        if found in families:
            raise ModelError(f"{origin}: the family {found} is refused: {reason}{preset}")
    own = set(chain(*tables["families"].get(found, {}).get("keys", {}).values()))
    experts = [key for key in tables["experts"]["keys"] if key not in own and document.get(key)]
    if PATTERN in own and EXPERTS not in str(document.get(PATTERN)):
        experts = []  # whose sizes such a config has all the same
    if experts:
        raise ModelError(
            f"{origin}: the family {shown(found)} with {experts[0]} = "
            f"{shown(document[experts[0]])} is refused: the layers of experts of this family are "
            f"not read{preset}"
        )
    if found not in tables["families"]:
        known = ", ".join(tables["families"])
        rather = preset or "; write the model's fields into a file of its own (docs/models.md)"
        raise ModelError(
            f"{origin}: the family {shown(found)!r} is not read, but {known} are{rather}"
        )
    return found


def _preset(document: Mapping[str, Any], family: str) -> str:
    """The end of a sentence: which preset has a config's sizes, or else which are of its family;
    nothing where there are none."""
    sizes = {
        field: next((document[key] for key in keys if key in document), None)
        for field, keys in SIZES.items()
    }
    said = {field: size for field, size in sizes.items() if type(size) is int}
    presets = [find_model(name) for name in model_names()]
    like = [gpt.name for gpt in presets if len(said) >= FEWEST and _has(gpt, said)]
    if like:
        return f"; the preset {' or '.join(like)} has its {', '.join(said)}: give that as MODEL"
    word = _letters(family)
    named = [gpt.name for gpt in presets if len(word) > 1 and _letters(gpt.name).startswith(word)]
    return f"; presets of such models: {', '.join(named)}" if named else ""


def _has(gpt: GPT, sizes: Mapping[str, int]) -> bool:
    return all(getattr(gpt, field) == size for field, size in sizes.items())


def _letters(name: str) -> str:
    """A name's letters and digits, without the words that only say what of a model it is."""
    return re.sub(r"[^a-z0-9]", "", name.lower().removesuffix("_text"))


def _classes(document: Mapping[str, Any], origin: str) -> list[str]:
    found = document.get("architectures") or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ModelError(f"{origin}: architectures = {shown(found)} must be a list of texts")
    return [shown(each) for each in found]
