"""Sentences that stand once under an answer, whichever command gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simulator.uncertainty.step_range import published_runs, table_of
from workload.expert_loads.histogram import RoutedGPT
from workload.gpt import GPT
from workload.recipes.table import FP8, NO_RECIPE

BALANCED = "balanced"  # in JSON, what is assumed of the routing
EVENLY = "experts are assumed to be used evenly; --routing FILE gives a measured histogram"
OF_BALANCED = "published runs are predicted with balanced routing"


def of_no_published(recipe: str, *, experts: bool) -> list[str]:
    """What is said of a range where no published run that it may come from has a plan's recipe."""
    known = {NO_RECIPE, FP8, *(row.recipe for row in published_runs(table_of(experts=experts)))}
    return [] if recipe in known else [f"none of any published run with recipe={recipe}"]


def assumes_balance(gpt: GPT) -> bool:
    """Whether experts of a model are taken to be chosen equally often, as nothing else is known."""
    return bool(gpt.moe.experts) and not isinstance(gpt, RoutedGPT)


def peak_of_mfu(prediction: Mapping[str, Any]) -> str:
    """The precision whose peak the MFU of a prediction, as JSON has it, is a share of, where the
    layers' linears multiply in fewer bits; else ""."""
    plan = prediction["plan"]
    is_narrow = prediction.get("fp8") or plan.get("recipe", NO_RECIPE) != NO_RECIPE
    return str(plan.get("precision", "")) if is_narrow else ""


def mfu_words(predictions: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the MFU of these predictions is a share of, where linears have a higher peak."""
    peaks = dict.fromkeys(filter(None, map(peak_of_mfu, predictions)))
    return [f"MFU is of the peak of {' or '.join(peaks)}, not of linears' own"] if peaks else []
