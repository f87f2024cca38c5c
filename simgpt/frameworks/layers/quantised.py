"""Recipes of simgpt as Megatron-LM's arguments, and back.

`--fp8-format` without `--fp8-recipe` is fp8 as the stack has it. Source: NVIDIA/Megatron-LM,
megatron/core/enums.py and megatron/core/transformer/transformer_config.py. Its delayed scales look
back on one step and take the latest unless told otherwise; simgpt's on 16, and the largest.
Without `--fp8-recipe` they are delayed in Megatron-LM, and of whole tensors in Megatron-Bridge
(src/megatron/bridge/training/mixed_precision.py): `fp8_recipe` of their tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from simgpt.frameworks.reading import ON, Reading
from simgpt.frameworks.switches import OFF
from workload.errors import PlanCannotRunError
from workload.recipes.table import DELAYED, FP8, HISTORY, NO_RECIPE, recipe_of
from workload.recomputation.parts import ACTIVATION, NORMS, parts_of

FORMAT, RECIPE, FOUR_BITS, OF_FOUR = "fp8-format", "fp8-recipe", "fp4-format", "fp4-recipe"
FORMATS = ("e4m3", "hybrid")
GATHERS = ("fp8-param-gather", "fp8-param")
OF_EIGHT: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "fp8-delayed": ("delayed", "hybrid"),
        "fp8-tensorwise": ("tensorwise", "hybrid"),
        "fp8-blockwise": ("blockwise", "e4m3"),
        "mxfp8": ("mxfp8", "e4m3"),
    }
)


def read(reading: Reading) -> str:
    """The recipe that arguments name, or NO_RECIPE."""
    if reading.word(FOUR_BITS, "", ("e2m1", *ON, *OFF)) not in OFF:
        if reading.text(OF_FOUR, "nvfp4") != "nvfp4":
            reading.differs(OF_FOUR, "scales of nvfp4")
        return "nvfp4"
    asked = reading.text(RECIPE)
    if not asked or not reading.given(FORMAT):
        return NO_RECIPE
    for name, (word, form) in OF_EIGHT.items():
        if word == asked:
            if reading.text(FORMAT, form) != form:
                reading.differs(FORMAT, f"{form}, which the recipe has")
            return name
    reading.differs(RECIPE, "the stack's own fp8")
    return NO_RECIPE


def read_params(reading: Reading) -> None:
    """Whether weights are kept in 8 bits, once all else of the plan is read.

    Source: NVIDIA/Megatron-LM@d98e8a6, megatron/training/arguments.py.
    """
    fields, asked = reading.fields, [name for name in GATHERS if reading.switch(name)]
    recipe = fields.get("recipe", NO_RECIPE)
    eight = fields.get("precision") == FP8 or recipe in OF_EIGHT
    if not asked or not eight:
        return
    why = ""
    if not fields["zero"]:
        why = "without a distributed optimizer, weights are in bf16"
    elif fields.get("optimizer", "adamw") != "adamw" or fields.get("offload") == "update":
        why = "weights updated by Muon or on the host are in bf16"
    elif fields["zero"] == 3 and recipe != NO_RECIPE and not recipe_of(recipe).of_tensors:
        why = "weights are gathered in bf16, since blocks of scales need whole weights"
    if why:
        reading.differs(asked[0], why)
        return
    fields["fp8_params"] = True
    if fields.get("master") == "remainders":  # of bf16 weights alone
        del fields["master"]


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a plan's recipe, if it has one."""
    of_weights = dict.fromkeys(GATHERS[:1], True) if fields["fp8_params"] else {}
    if fields["recipe"] == NO_RECIPE:
        return of_weights
    if fields["recipe"] == FP8:
        _check(fields)
        return {FORMAT: "hybrid", **of_weights}
    if fields["recipe"] not in OF_EIGHT:
        return {FOUR_BITS: "e2m1", OF_FOUR: "nvfp4"}
    word, form = OF_EIGHT[fields["recipe"]]
    settings: dict[str, Any] = {FORMAT: form, RECIPE: word, **of_weights}
    if recipe_of(fields["recipe"]).scaling == DELAYED:
        settings |= {"fp8-amax-history-len": HISTORY, "fp8-amax-compute-algo": "max"}
    return settings


def _check(fields: Mapping[str, Any]) -> None:
    """Refuse parts that run again with the delayed scales of fp8 without a recipe.

    Source: NVIDIA/Megatron-LM@d98e8a6, megatron/core/transformer/transformer_config.py.
    """
    again = parts_of(fields["recompute"]) & {NORMS, ACTIVATION}
    delayed = fields["table"]["fp8_recipe"] == OF_EIGHT["fp8-delayed"][0]
    if again and delayed:
        raise PlanCannotRunError(
            f"Megatron-LM's scales of precision=fp8 are delayed, and it does not run recompute="
            f"{min(again)} with these; give recipe=fp8-tensorwise, or leave {min(again)} out"
        )
