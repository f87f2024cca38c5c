"""Which family's a `config.json` of Hugging Face is, and where in it the language model stands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

from topologies.files.printable import shown
from workload.descriptions.configs.families import row_of
from workload.errors import ModelError
from workload.gpt import GPT, find_model, model_names
from workload.models.pattern import EXPERTS

LANGUAGE = (  # of models that see or hear, too; deeper ones below the others
    *("text_config", "llm_config", "language_config", "language_model_config"),
    *("thinker_config", "decoder_config"),
)
OTHER, TYPE = "_config", "model_type"
SHARED = "tie_word_embeddings"  # a switch of the whole model, and of its language model
SIZES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
}
PATTERN, BLOCKS, LAYERS = "hybrid_override_pattern", "layers_block_type", "num_hidden_layers"
LETTERS = {  # of layers in a pattern, by the words of transformers 4 and 5
    **{"mamba": "M", "mlp": "-", "attention": "*", "moe": EXPERTS},
    **{"linear_attention": "M", "full_attention": "*"},
}
FEWEST = 2  # of these sizes, by which a preset is known


def of_language(
    document: Mapping[str, Any], origin: str, tables: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str, list[str]]:
    """The config of the language model, its name in sentences, and which others are left out.

    Models of several senses have it one level down or more, unless their family is read as it is.
    """
    left_out: list[str] = []
    while (within := _within(document, tables)) is not None:
        inner = dict(document[within])
        for key in (SHARED, *([] if {"model_type", "architectures"} & inner.keys() else [TYPE])):
            if key in document:
                inner.setdefault(key, document[key])
        left_out += [each for each in _others(document, tables) if each != within]
        document, origin = inner, f"{origin}, {within}"
    left_out += [each for each in _others(document, tables) if each.endswith(OTHER)]
    return document, origin, [shown(key) for key in dict.fromkeys(left_out)]


def _within(document: Mapping[str, Any], tables: Mapping[str, Any]) -> str | None:
    """The key under which the language model stands; None where it stands at the top."""
    if document.get(TYPE) in tables["families"]:
        return None
    return next((key for key in LANGUAGE if isinstance(document.get(key), dict)), None)


def _others(document: Mapping[str, Any], tables: Mapping[str, Any]) -> list[str]:
    """The keys of a config's tables that have an effect and are no part of the language model."""
    rows = tables["families"].values()
    keys = chain(*(keys for row in rows for keys in row.get("keys", {}).values()))
    own = {key.partition(".")[0] for key in keys if "." in key}
    passed = {*own, *tables["without_effect"]["keys"], *chain(*tables["layers"].values())}
    return [key for key, value in document.items() if isinstance(value, dict) and key not in passed]


def with_pattern(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the letters of a hybrid's layers where it has their words."""
    words = document.get(BLOCKS)
    if document.get(PATTERN) or not isinstance(words, list) or not words:
        return document
    if any(not isinstance(word, str) or word not in LETTERS for word in words):
        return document
    pattern = "".join(LETTERS[word] for word in words)
    return {**document, PATTERN: pattern, LAYERS: document.get(LAYERS, len(words))}


def family_of(
    document: Mapping[str, Any], origin: str, tables: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """The family of a config by its model_type, or by its class, with notes on that choice.

    Raises a ModelError for a family that is not read. It names the layers that are not modelled, or
    the nearest families, and the preset with the config's sizes, if there is one.
    """
    rows, classes = tables["families"], _classes(document, origin)
    of_class = next(
        (name for name, row in rows.items() if {*classes} & {*row["architectures"]}), ""
    )
    named = document.get(TYPE) or of_class or ", ".join(classes)
    if not isinstance(named, str):
        raise ModelError(f"{origin}: model_type = {shown(named)} must be text")
    found, remark = str(tables["same_as"].get(named, named)), []
    first = shown("".join(classes[:1]))
    of_its_class = [f"the family {shown(named)} is read as its class, {first}"]
    if found not in rows and of_class.startswith(f"{found}_"):  # its next generation
        found, remark = of_class, of_its_class
    elif of_class and found in rows and not {*classes} & {*rows[found]["architectures"]}:
        remark = [f"architectures has {first}, and the family is read as model_type has it"]
    if layers := _lacking(document, found, tables):
        raise ModelError(
            f"{origin}: simgpt cannot read the family {shown(named)}: it needs {layers}, which is "
            f"not modelled{_preset(document, found)}"
        )
    if found in tables["other"]["families"]:
        raise ModelError(f"{origin}: {shown(found)} is not decoder-only, so simgpt cannot model it")
    if found not in rows and of_class:
        found, remark = of_class, of_its_class
    if found not in rows:
        near = difflib.get_close_matches(named, [*rows, *tables["same_as"]], n=3, cutoff=0.0)
        rather = (
            _preset(document, found) or "; or write the model's fields into a file (docs/models.md)"
        )
        raise ModelError(
            f"{origin}: the family {shown(named)!r} is unknown; nearest known: "
            f"{', '.join(near)}{_preset(document, found) or rather}"
        )
    row = row_of(rows, found)
    read = {*chain(*row["keys"].values()), *row["experts"].values(), *row["ignored"]}
    experts = [key for key in tables["experts"]["keys"] if key not in read and document.get(key)]
    if experts:
        raise ModelError(
            f"{origin}: the family {shown(found)} with {experts[0]} = "
            f"{shown(document[experts[0]])} is refused: simgpt does not read this family's "
            f"experts{_preset(document, found)}"
        )
    return found, remark


def _lacking(document: Mapping[str, Any], family: str, tables: Mapping[str, Any]) -> str:
    """The kind of layers of a config that simgpt does not model, by its family or its keys; "" if
    none."""
    for layers, families in tables["refused"].items():
        if family in families:
            return str(layers)
    rows = tables["families"]
    read = set(chain(*row_of(rows, family)["keys"].values())) if family in rows else set()
    for layers, keys in tables["layers"].items():
        if any(_is_asked(document.get(key)) and key not in read for key in keys):
            return str(layers)
    return ""


def _is_asked(value: Any) -> bool:
    """Whether a key asks for unusual layers; in a list, 1 stands for a usual layer."""
    return bool(value) and not (isinstance(value, list) and all(each == 1 for each in value))


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
    return all(gpt.value(field) == size for field, size in sizes.items())


def _letters(name: str) -> str:
    """A name's letters and digits, without the words that only say what of a model it is."""
    return re.sub(r"[^a-z0-9]", "", name.lower().removesuffix("_text"))


def _classes(document: Mapping[str, Any], origin: str) -> list[str]:
    found = document.get("architectures") or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ModelError(f"{origin}: architectures = {shown(found)} must be a list of texts")
    return [shown(each) for each in found]
