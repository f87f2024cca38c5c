"""The kinds of a model's layers: with experts or without, in a window or over all tokens.

Bounds come from the program of a model with one layer of each kind, its base.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from workload.errors import ModelError
from workload.expert_loads.histogram import least_uneven
from workload.gpt import GPT
from workload.models import moe, windows
from workload.op import HEAD, Part

LAYER = "layer"
# Names by whether layers have experts, and attend to all tokens where others have a window.
NAMES = {
    (False, False): "dense",
    (False, True): "dense over all tokens",
    (True, False): "experts",
    (True, True): "experts over all tokens",
}
KINDS = tuple(NAMES.values())
Kind = tuple[bool, int]  # whether it has experts, and its window


def has_kinds(gpt: GPT) -> bool:
    """Whether a model's layers are of several kinds."""
    return has_dense_and_experts(gpt) or attends_differently(gpt)


def has_dense_and_experts(gpt: GPT) -> bool:
    """Whether some of a model's layers have experts, and some have none."""
    return moe.layers_with_experts(gpt) not in (0, gpt.layers)


def attends_differently(gpt: GPT) -> bool:
    """Whether some of a model's layers attend to all tokens, and some to those of a window."""
    return windows.has_windows(gpt) and 0 < gpt.attention.global_every <= gpt.layers


def base_of(gpt: GPT) -> GPT:
    """A model with one layer of each kind, whose experts are chosen no more unevenly than those of
    any layer. Where no model has just these kinds, it has one of each of all four."""
    gpt = least_uneven(gpt)
    if not has_kinds(gpt):
        return of_one_kind(gpt, 1)
    wanted = {_kind(gpt, layer) for layer in range(gpt.layers)}
    every = (base for count in range(len(wanted), len(KINDS) + 1) for base in _models(gpt, count))
    return next(base for base in every if _has_each_once(base, wanted))


def _models(gpt: GPT, layers: int) -> Iterator[GPT]:
    """Models of so many layers, with experts behind the first ones, by where all is attended to."""
    own = gpt.changed(layers=layers, dense_layers=0, expert_every=1)
    count = range(layers + 1)
    for dense, every in product(
        count if gpt.moe.experts else [0], count if gpt.attention.window else [0]
    ):
        try:
            yield own.changed(dense_layers=dense, global_every=every)
        except ModelError:  # no model has these together
            continue


def _has_each_once(gpt: GPT, wanted: set[Kind]) -> bool:
    found = {_kind(gpt, layer) for layer in range(gpt.layers)}
    return len(found) == gpt.layers and wanted <= found


def of_one_kind(gpt: GPT, layers: int) -> GPT:
    """So many layers of the one kind that a model has."""
    unused = gpt.moe.experts and not moe.layers_with_experts(gpt)
    return gpt.changed(layers=layers, dense_layers=layers if unused else 0)


def names_of(gpt: GPT) -> tuple[str, ...]:
    """The kinds of a model's layers, by their numbers in the base."""
    base = base_of(gpt)
    return tuple(name_of(base, layer) for layer in range(base.layers))


def name_of(gpt: GPT, layer: int) -> str:
    """The kind of a layer."""
    if not has_kinds(gpt):
        return LAYER
    whole = attends_differently(gpt) and not windows.window_of(gpt, layer)
    return NAMES[moe.has_experts(gpt, layer), whole]


def kind_of(part: Part, gpt: GPT) -> str:
    """The kind of a part of a model; what predicts further tokens is of the head."""
    if not is_own_layer(part, gpt):
        return HEAD.kind if part.is_layer else part.kind
    return name_of(gpt, part.layer)


def is_own_layer(part: Part, gpt: GPT) -> bool:
    """Whether a part is one of the model's layers, not of those that predict further tokens."""
    return part.is_layer and part.layer < gpt.layers


def _kind(gpt: GPT, layer: int) -> Kind:
    return moe.has_experts(gpt, layer), windows.window_of(gpt, layer)
