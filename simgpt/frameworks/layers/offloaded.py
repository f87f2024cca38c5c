"""Megatron-LM's argument that keeps activations in the host's memory.

Source: NVIDIA/Megatron-LM@d98e8a6, megatron/core/transformer/transformer_config.py (cpu_offloading:
of fewer layers than there are, without a pipeline and without recomputation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simgpt.frameworks.reading import Reading
from workload.passes.activations import ACTIVATIONS

LAYERS = "cpu-offloading-num-layers"


def read(reading: Reading) -> None:
    """Read how many layers' activations go to the host: all but the last, or none."""
    if not reading.given(LAYERS):
        return
    if reading.text(LAYERS) == str(reading.of_model("layers") - 1):
        reading.fields["offload"] = ACTIVATIONS
    else:
        reading.refuse(LAYERS, "activations of all layers but the last go to the host, or none")


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The argument for activations in the host's memory."""
    return {LAYERS: fields["layers"] - 1} if fields["offload"] == ACTIVATIONS else {}
