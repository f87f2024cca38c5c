"""What a `config.json` of Hugging Face says of a model's experts beyond keys of one field each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from topologies.files.printable import shown
from workload.errors import ModelError
from workload.models.moe import MICRO_BATCH, SEQUENCE, SOFTMAX, SOFTMAX_OF_CHOSEN, layers_of

Get = Callable[[str], Any]


def experts_of(table: Mapping[str, str], get: Get, layers: int, origin: str) -> dict[str, Any]:
    """The fields that a family's `table` of `hugging_face.toml` says where to find.

    `get` gives a key's value. A ModelError names a key that is none of its kind, or layers of
    experts that are at no equal distance.
    """
    found: dict[str, Any] = {}
    if key := table.get("normalised"):
        if not isinstance(get(key), bool):
            raise ModelError(f"{origin}: {key} = {shown(get(key))} must be true or false")
        found["router"] = SOFTMAX_OF_CHOSEN if get(key) else SOFTMAX
    if key := table.get("shared"):
        count, width = get(key) or 0, get(table["width"])
        if type(count) is not int or count < 0 or type(width) is not int:
            raise ModelError(f"{origin}: {key} = {shown(count)} must be a whole number")
        found["shared_ffn"] = count * width
    if key := table.get("step"):
        step, dense = get(key), get(table["dense"]) or []
        if type(step) is not int or step < 1:
            raise ModelError(f"{origin}: {key} = {shown(step)} must be a whole number of layers")
        if not isinstance(dense, list) or any(type(each) is not int for each in dense):
            words = f"{table['dense']} = {shown(dense)} must be a list of layers"
            raise ModelError(f"{origin}: {words}")
        without = set(dense)
        marks = layers_of([(n + 1) % step == 0 and n not in without for n in range(layers)])
        if marks is None:
            raise ModelError(
                f"{origin}: by {key} = {step} and {table['dense']} = {shown(dense)} layers with "
                "experts are at no equal distances, or there are none"
            )
        found |= {"dense_layers": marks[0], "expert_every": marks[1]}
    return found | _groups(table, get, origin) | _balance(table, get, origin)


def _balance(table: Mapping[str, str], get: Get, origin: str) -> dict[str, Any]:
    """The weight of the loss of uneven use, and over which tokens it is; nothing where a config
    gives none."""
    key = table.get("balance", "")
    weight = get(key) or 0.0
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < inf:
        raise ModelError(f"{origin}: {key} = {shown(weight)} must be a number of at least 0")
    if not weight:
        return {}
    over = SEQUENCE if "over" in table and get(table["over"]) else MICRO_BATCH
    return {"balance_loss": float(weight), "balance_over": over}


def _groups(table: Mapping[str, str], get: Get, origin: str) -> dict[str, int]:
    """How many groups the experts are in, and from how many of them a token chooses."""
    keys = [table[name] for name in ("groups", "chosen_groups") if name in table]
    if not keys or ("method" in table and get(table["method"]) != table["grouped"]):
        return {}
    counts = [1 if get(key) is None else get(key) for key in keys]
    for key, count in zip(keys, counts, strict=True):
        if type(count) is not int or count < 1:
            raise ModelError(f"{origin}: {key} = {shown(count)} must be a whole number above 0")
    if counts[0] == 1:
        return {}
    return dict(zip(("router_groups", "router_topk_groups"), counts, strict=True))
