"""The fields of a whole plan, as an answer has them, among those that a search keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workload.exchange.table import USUAL
from workload.gpt import GPT
from workload.stages import nearly_even

# What every plan of a search has anyway.
ANYWAY: Mapping[str, Any] = {
    "stage_layers": (),
    "ends_as_layers": False,
    "context_latents": False,
    "context_heads": 1,
    "loss": "plain",
    "offload_share": 1.0,
    "fp8_params": False,
    "loss_chunks": 1,
}


def that_tell_apart(
    fixed: Mapping[str, Any], gpt: GPT, batch: int, dispatcher: str = USUAL
) -> dict[str, Any]:
    """The fields that tell plans of a search apart: without those that all have anyway, a
    dispatcher of a model without experts, the batch that is asked for, and a split of layers that
    is as even as can be.

    >>> from workload.gpt import find_model
    >>> gpt = find_model("llama-3.1-8b")
    >>> that_tell_apart({"batch": 8, "zero": 1, "dispatcher": "usual"}, gpt, 8)
    {'zero': 1}
    """
    chunks = fixed.get("pp", 0) * fixed.get("vpp", 1)
    even = nearly_even(gpt.layers, chunks) if 0 < chunks <= gpt.layers else ()
    plain = {**ANYWAY, "batch": batch}
    if not gpt.moe.experts and fixed.get("dispatcher") in (USUAL, dispatcher):
        plain["dispatcher"] = fixed["dispatcher"]
    return {
        key: value
        for key, value in fixed.items()
        if not (key in plain and value == plain[key]) and (key, value) != ("stage_layers", even)
    }
