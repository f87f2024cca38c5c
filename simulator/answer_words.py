"""Sentences that stand once under an answer, whichever command gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workload.recipes.table import NO_RECIPE


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
