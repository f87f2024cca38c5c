"""What a `config.json` of Hugging Face says of a model's experts beyond keys of one field each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from topologies.files.printable import shown
from workload.errors import ModelError
from workload.models.moe import SOFTMAX, SOFTMAX_OF_CHOSEN

Get = Callable[[str], Any]


def experts_of(
    table: Mapping[str, str], get: Get, layers: int, origin: str
) -> dict[str, int | str]:
    """The fields that a family's `table` of `hugging_face.toml` says where to find.

    `get` gives a key's value. A ModelError names a key that is none of its kind, or layers of
    experts that are at no equal distance.
    """
    found: dict[str, int | str] = {}
    if key := table.get("normalised"):
        if not isinstance(get(key), bool):
            raise ModelError(f"{origin}: {key} = {shown(get(key))} must be true or false")
        found["router"] = SOFTMAX_OF_CHOSEN if get(key) else SOFTMAX
    if key := table.get("step"):
        step, dense = get(key), get(table["dense"]) or []
        if type(step) is not int or step < 1:
            raise ModelError(f"{origin}: {key} = {shown(step)} must be a whole number of layers")
        if not isinstance(dense, list) or any(type(each) is not int for each in dense):
            words = f"{table['dense']} = {shown(dense)} must be a list of layers"
            raise ModelError(f"{origin}: {words}")
        those = [n for n in range(layers) if (n + 1) % step == 0 and n not in dense]
        found |= _distances(those, layers, f"{origin}: {key} = {step} and {table['dense']}")
    return found


def _distances(those: list[int], layers: int, origin: str) -> dict[str, int | str]:
    """How many layers stand before the first with experts, and every how manieth has them."""
    every = those[1] - those[0] if len(those) > 1 else 1
    before = those[0] - every + 1 if those else -1
    if before < 0 or those != list(range(those[0], layers, every)):
        raise ModelError(f"{origin}: layers with experts must be at equal distances, and some")
    return {"dense_layers": before, "expert_every": every}
