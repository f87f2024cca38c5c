"""What a `config.json` of Hugging Face says of a model's experts beyond keys of one field each."""

from __future__ import annotations

from math import inf
from typing import Any

from topologies.files.printable import shown
from workload.descriptions.configs.config import Config, as_json
from workload.errors import ModelError
from workload.model.experts import MICRO_BATCH, SEQUENCE, SOFTMAX, SOFTMAX_OF_CHOSEN
from workload.model.fields import KEYS
from workload.models.moe import layers_of

OF_EXPERTS = tuple(key for key, each in KEYS.items() if each.part == "moe")
TYPES, SPARSE = "mlp_layer_types", "sparse"  # a word for each layer, in whichever family
MARKS = "moe_layer_freq"  # 0 or 1 for each layer, where it is a list


def experts_of(table: dict[str, Any], config: Config, layers: int) -> dict[str, Any]:
    """The fields that a family's `experts` in `families.toml` say where to find.

    A ModelError names a key that is none of its kind, or layers of experts that are at no equal
    distance.
    """
    get, origin = config.get, config.origin
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
    found |= _places(table, config, layers)
    return found | _groups(table, config) | _balance(table, config)


def _places(table: dict[str, Any], config: Config, layers: int) -> dict[str, int]:
    """`dense_layers` and `expert_every`, if the config marks layers one by one or by a step."""
    keys, marks = _marks(table, config, layers)
    if marks is None:
        return {}
    found = layers_of(marks)
    said = " and ".join(f"{key} = {shown(config.get(key))}" for key in keys)
    if len(marks) != layers:
        raise ModelError(f"{config.origin}: {said} has {len(marks)} layers, but the model {layers}")
    if found is None:
        raise ModelError(
            f"{config.origin}: {said} has no layers with experts, or not every n-th layer; only "
            "equal distances are modelled"
        )
    return dict(zip(("dense_layers", "expert_every"), found, strict=True))


def _marks(
    table: dict[str, Any], config: Config, layers: int
) -> tuple[list[str], list[bool] | None]:
    """The keys that mark layers with experts, and each layer's mark; None if no key marks them."""
    get = config.get
    if isinstance(types := config.document.get(TYPES), list):
        return [TYPES], [each == SPARSE for each in types]
    if isinstance(marks := config.document.get(MARKS), list):
        return [MARKS], [bool(each) for each in marks]
    if get(key := table.get("those", "")) is not None:
        return [key], _among(config, key, layers)
    if key := table.get("step"):
        step, dense = get(key), table.get("dense", "")
        if type(step) is not int or step < 1:
            config.wrong(key, step, "must be a whole number of layers")
        without = _among(config, dense, layers) if get(dense) else [False] * layers
        keys = [key, dense] if dense else [key]
        return keys, [(n + 1) % step == 0 and not without[n] for n in range(layers)]
    if key := table.get("last"):
        last = get(key)
        if last not in (None, -1, layers - 1):
            config.wrong(key, last, "is not modelled; -1, the last of all layers, is")
    return [], None


def _among(config: Config, key: str, layers: int) -> list[bool]:
    """Whether each layer is in a list of their numbers."""
    those = config.get(key)
    if not isinstance(those, list) or any(type(each) is not int for each in those):
        raise ModelError(f"{config.origin}: {key} = {as_json(those)} must be a list of layers")
    named = set(those)
    return [n in named for n in range(layers)]


def _balance(table: dict[str, Any], config: Config) -> dict[str, Any]:
    """The weight of the load-balancing loss, and over which tokens it is; nothing where a config
    gives none."""
    get, origin = config.get, config.origin
    key = table.get("balance", "")
    weight = get(key) or 0.0
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < inf:
        raise ModelError(f"{origin}: {key} = {shown(weight)} must be a number of at least 0")
    if not weight:
        return {}
    over = SEQUENCE if "over" in table and get(table["over"]) else MICRO_BATCH
    return {"balance_loss": float(weight), "balance_over": over}


def _groups(table: dict[str, Any], config: Config) -> dict[str, int]:
    """How many groups the experts are in, and from how many of them a token chooses."""
    get, origin = config.get, config.origin
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
