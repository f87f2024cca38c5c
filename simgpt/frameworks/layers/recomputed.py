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
from workload.models.pattern import MLP as DENSE
from workload.recomputation.parts import (
    ACTIVATION,
    CORE,
    EXPERTS,
    FULL,
    MLP,
    NONE,
    PARTS,
    RECOMPUTES,
    SELECTIVE,
    SHARED,
    UP,
    parts_of,
)

MODULES = "recompute-modules"
METHODS = ("block", "uniform")


def read(reading: Reading) -> None:
    """Read what runs again in the backward pass: layers whole, or parts of them."""
    fields = reading.fields
    granularity = reading.text("recompute-granularity", NONE)
    count = reading.number("recompute-num-layers", 1)
    if reading.switch("recompute-activations"):
        granularity = SELECTIVE
    older = reading.word("activations-checkpoint-method", "", METHODS)  # of Megatron-LM before 2022
    if reading.switch("checkpoint-activations") or older:
        granularity = FULL
        count = reading.number("activations-checkpoint-num-layers", count)
    experts_alone = reading.switch("moe-layer-recompute") and granularity != FULL
    if granularity not in RECOMPUTES:
        known = ", ".join(RECOMPUTES)
        raise FrameworkError(f"--recompute-granularity = {granularity} is none of {known}")
    fields["recompute"] = granularity
    method = reading.word("recompute-method", "", METHODS)
    if granularity == FULL and METHODS[0] in (method, older):
        fields["recompute"] = f"full:{count}" if count else NONE
    elif granularity == FULL and count > 1:
        reading.differs("recompute-num-layers", "each layer's input is kept")
    parts: list[str] = []
    if granularity == SELECTIVE:
        parts = _modules(reading, reading.text(MODULES, CORE))
    else:
        reading.without(MODULES)
    parts += [EXPERTS] if experts_alone and EXPERTS not in parts else []
    if parts:
        fields["recompute"] = SELECTIVE if parts == [CORE] else "+".join(parts)
    elif granularity == SELECTIVE:
        fields["recompute"] = NONE


def _modules(reading: Reading, text: str) -> list[str]:
    """The parts of layers that run again, without those that no layer of a known model has."""
    named = list(dict.fromkeys(re.findall(r"\w+", text)))
    if unknown := [name for name in named if name not in PARTS]:
        reading.differs(MODULES, f"{', '.join(unknown)} does not run again")
    none = _lacking(reading)
    if lacking := [name for name in PARTS if name in named and name in none]:
        why = f"{', '.join(lacking)} does not run again, as no layer of the model has it"
        reading.differs(MODULES, why)
    return [name for name in PARTS if name in named and name not in lacking]


def _lacking(reading: Reading) -> list[str]:
    """The parts that no layer of the model has, as far as the files and the user's model tell."""
    whole = bool(reading.of_model("layers"))  # or else the model is still to be given
    pattern, experts = reading.model.get("pattern", ""), reading.of_model("experts")
    every = reading.of_model("expert_every", 0)  # 0: not known which layers have experts
    all_routed = experts and every == 1 and not reading.of_model("dense_layers")
    found = [MLP] if (DENSE not in pattern if pattern else all_routed) else []
    if whole and not experts:
        found += [EXPERTS, ACTIVATION]
    if whole and not reading.of_model("shared_ffn"):
        found.append(SHARED)
    return found + ([UP] if whole and not reading.of_model("kv_rank") else [])


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
