"""Megatron-LM's arguments of recomputation as a plan's, and such as arguments.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (`--recompute-*`, of older releases
`--activations-checkpoint-*`, `--moe-layer-recompute`) and
megatron/core/transformer/transformer_config.py (recompute_modules, whose names a plan has too).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import FrameworkError, Reading
from workload.recomputation.parts import (
    CORE,
    EXPERTS,
    FULL,
    MLP,
    NONE,
    PARTS,
    RECOMPUTES,
    SELECTIVE,
    parts_of,
)

MODULES = "recompute-modules"


def read(reading: Reading) -> None:
    """Read what runs again in the backward pass: layers whole, or parts of them."""
    fields = reading.fields
    granularity = reading.text("recompute-granularity", NONE)
    count = reading.number("recompute-num-layers", 1)
    if reading.switch("recompute-activations"):
        granularity = SELECTIVE
    older = reading.text("activations-checkpoint-method")  # of Megatron-LM before 2022
    if reading.switch("checkpoint-activations") or older:
        granularity = FULL
        count = reading.number("activations-checkpoint-num-layers", count)
    experts_alone = reading.switch("moe-layer-recompute") and granularity != FULL
    if granularity not in RECOMPUTES:
        known = ", ".join(RECOMPUTES)
        raise FrameworkError(f"--recompute-granularity = {granularity} is none of {known}")
    fields["recompute"] = granularity
    if granularity == FULL and "block" in (reading.text("recompute-method"), older):
        fields["recompute"] = f"full:{count}" if count else NONE
    elif granularity == FULL and count > 1:
        reading.differs("recompute-num-layers", "each layer's input is kept")
    named = reading.text(MODULES, CORE)  # without effect where no parts run again
    parts = _modules(reading, named) if granularity == SELECTIVE else []
    parts += [EXPERTS] if experts_alone and EXPERTS not in parts else []
    if parts:
        fields["recompute"] = SELECTIVE if parts == [CORE] else "+".join(parts)
    elif granularity == SELECTIVE:
        fields["recompute"] = NONE


def _modules(reading: Reading, text: str) -> list[str]:
    """The parts of layers that run again, without the MLP of layers where all have experts."""
    named = list(dict.fromkeys(re.findall(r"\w+", text)))
    if unknown := [name for name in named if name not in PARTS]:
        reading.differs(MODULES, f"{', '.join(unknown)} does not run again")
    fields = reading.fields
    dense = not fields.get("experts") or fields.get("dense_layers") or fields["expert_every"] > 1
    return [name for name in PARTS if name in named and (name != MLP or dense)]


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for what a plan recomputes."""
    if parts := parts_of(fields["recompute"]):
        named = [part for part in PARTS if part in parts]
        return {"recompute-granularity": SELECTIVE} | ({MODULES: named} if named != [CORE] else {})
    word, _, count = fields["recompute"].partition(":")
    if word == NONE:
        return {}
    settings: dict[str, Any] = {"recompute-granularity": word}
    settings["recompute-method"] = "block" if count else "uniform"
    return settings | {"recompute-num-layers": count or 1}
