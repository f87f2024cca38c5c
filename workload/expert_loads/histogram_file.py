"""A measured histogram of experts from a user's file, checked against the model it is for.

In TOML or JSON it has `tokens`, a list of how often each expert was chosen that goes for every
layer with experts, or `layers`, a table of such lists by the layers' numbers from 0; that of a
module for a second token has the number behind the last. `source` is for the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topologies.files.printable import path_shown, shown
from topologies.files.reading import TABLE_BYTES, UserFile
from workload.errors import ModelError
from workload.expert_loads.histogram import Counts, Histogram, RoutedGPT, expert_layers, routed
from workload.gpt import GPT
from workload.models.mtp import every_layer

FILE = UserFile("routing histogram", ModelError, TABLE_BYTES)
KEYS = ("tokens", "layers", "source")
MOST = 2**53  # of a count, so that it is a number in JSON too


def read_routed(gpt: GPT, path: str | Path) -> RoutedGPT:
    """The model with the histogram of a file."""
    return routed(gpt, histogram_of(FILE.document(path), gpt, path_shown(path)))


def as_document(layers: Mapping[int, Counts], source: str) -> dict[str, Any]:
    """What a file says that has these counts."""
    return {
        "source": source,
        "layers": {str(layer): list(counts) for layer, counts in sorted(layers.items())},
    }


def histogram_of(document: Any, gpt: GPT, origin: str) -> Histogram:
    """The histogram of a document, which `origin` names in sentences; a ModelError says what is
    wrong with it, or that it is of another model."""
    if not expert_layers(gpt):
        raise ModelError(f"{origin} says how experts are chosen, and {gpt.name} has none")
    if not isinstance(document, dict) or ("tokens" in document) == ("layers" in document):
        raise ModelError(
            f"{origin} is not a routing histogram: it should have tokens = [4, 2, 1, 1], or a "
            "table layers of such lists, and not both"
        )
    for key in document:
        if key not in KEYS:
            raise ModelError(f"{origin}: unknown key {shown(key)}; known: {', '.join(KEYS)}")
    if "tokens" in document:
        own = _counts(document["tokens"], gpt, f"{origin}: tokens")
        found = dict.fromkeys(expert_layers(gpt), own)
    else:
        found = _by_layer(document["layers"], gpt, origin)
    return Histogram(tuple(found.get(n, ()) for n in every_layer(gpt)))


def _by_layer(table: Any, gpt: GPT, origin: str) -> dict[int, Counts]:
    if not isinstance(table, dict):
        raise ModelError(f"{origin}: layers should be a table of lists by the layers' numbers")
    known = {str(layer): layer for layer in expert_layers(gpt)}
    for key in table:
        if key not in known:
            raise ModelError(
                f"{origin}: {gpt.name} has no layer {shown(key)} with experts; it has "
                f"{_words(list(known.values()))}"
            )
    if missing := [layer for key, layer in known.items() if key not in table]:
        raise ModelError(f"{origin} lacks layers of {gpt.name} with experts: {_words(missing)}")
    return {known[key]: _counts(own, gpt, f"{origin}: layer {key}") for key, own in table.items()}


def _words(layers: list[int]) -> str:
    few = [str(layer) for layer in layers]
    return ", ".join(few) if len(few) < 9 else f"{', '.join(few[:3])}, … {few[-1]}"


def _counts(given: Any, gpt: GPT, what: str) -> Counts:
    """The counts of a layer, which `what` names."""
    if not isinstance(given, list) or len(given) != gpt.moe.experts:
        count = f"{len(given)} numbers" if isinstance(given, list) else "no list"
        raise ModelError(f"{what} has {count}, but {gpt.name} has {gpt.moe.experts} experts")
    for number, each in enumerate(given):
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= MOST:
            raise ModelError(
                f"{what}: expert {number} has {shown(each)}, but should have a whole number of "
                "tokens, 0 or more"
            )
    if not (total := sum(given)):
        raise ModelError(f"{what} has no tokens at all: some expert must have been chosen")
    if max(given) * gpt.moe.topk > total:
        raise ModelError(
            f"{what}: expert {given.index(max(given))} has {max(given):,} of {total:,} choices, "
            f"but a token of {gpt.name} chooses {gpt.moe.topk} different experts, so that none has "
            f"more than one choice in {gpt.moe.topk}"
        )
    return tuple(given)
