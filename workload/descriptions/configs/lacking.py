"""Parts of a family's models that `GPT` cannot describe: counted, and named in notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workload.gpt import GPT
from workload.models import moe

BIASES = {
    "qkv": "query, key and value projections",
    "o": "the attention output projection",
    "qkvo": "the attention's linears",
    "mlp": "the MLP's linears",
    "head": "the classifier",
}


def biases_of(switches: Mapping[str, str], is_on: Mapping[str, bool]) -> list[str]:
    """The groups of biases (keys of `BIASES`) that a row's switches turn on."""
    words = [word for key, said in switches.items() if is_on[key] for word in said.split()]
    return list(dict.fromkeys(words))


def bias_elements(gpt: GPT, which: str) -> int:
    """Elements of one group of biases in the whole model."""
    if which == "head":
        return gpt.vocab
    if which == "mlp":
        return gpt.layers * (sum(gpt.up_bands) + gpt.hidden)
    into = 0 if which == "o" or gpt.attention.qkv_bias else sum(gpt.first_bands)
    return gpt.layers * (into + gpt.hidden * (which != "qkv"))


def biases_lacking(gpt: GPT, words: list[str]) -> dict[str, int]:
    """The groups of biases that `GPT` cannot describe, with their elements."""
    if gpt.biases:
        words = [word for word in words if word == "head"]
    return {w: bias_elements(gpt, w) for w in words if not (w == "qkv" and gpt.attention.qkv_bias)}


def elements(gpt: GPT, lack: Mapping[str, Any]) -> int:
    """Parameters of the family's model that `GPT` lacks; below 0, `GPT` has too many."""
    of_layers = {"layer": gpt.layers, "expert_layer": moe.layers_with_experts(gpt), "ends": 1}
    sizes = _sizes(gpt)
    return sum(
        times * multiple * sizes[size]
        for where, times in of_layers.items()
        for size, multiple in lack.get(where, {}).items()
    )


def _sizes(gpt: GPT) -> dict[str, int]:
    queries, keys, _ = gpt.bands
    plain = {"hidden": gpt.hidden, "ffn": gpt.ffn, "vocab": gpt.vocab, "experts": gpt.moe.experts}
    return {**plain, "queries": queries, "keys": keys, "head": gpt.width, "one": 1}


def sentences(gpt: GPT, lacks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each of a row's `lacks`."""
    for lack in lacks.values():
        count = elements(gpt, lack)
        if parts := lack.get("parts"):
            yield (
                f"{parts} ({count:,} parameters) are not modelled"
                if count
                else (f"{parts} are not modelled")
            )
        else:
            many = f" ({abs(count):,} parameters too {'few' if count > 0 else 'many'})"
            yield lack["otherwise"] + (many if count else "")
