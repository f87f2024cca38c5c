"""What a golden run recomputes, as its column says it: `selective/modules=moe_act`, `full/uniform`.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/transformer_block.py, _checkpointed_forward:
"uniform" keeps the inputs of each so many layers (--recompute-num-layers), "block" recomputes the
first so many of a chunk; and transformer_config.py: without modules "selective" is core_attn.
"""

from __future__ import annotations

import re

from validation.memory.golden_flags import Cells, number
from workload.recomputation.parts import CORE, FULL, NONE, PARTS

SELECTIVE, UNIFORM, BLOCK = "selective", "uniform", "block"
LAYERS = "recompute-num-layers"


def recomputes(cells: Cells) -> str | None:
    """The plan's word for what runs again; None where there is none."""
    text = cells["recompute"]
    if text in ("", NONE):
        return NONE
    if text.startswith(SELECTIVE):
        named = re.findall(r"[a-z_]+", text.partition("modules=")[2]) or [CORE]
        return "+".join(named) if set(named) <= set(PARTS) else None
    if text.startswith(FULL):
        count = _layers(cells)
        if BLOCK in text:
            return f"{FULL}:{count}"
        return FULL if UNIFORM in text and count == 1 else None
    return None


def _layers(cells: Cells) -> int:
    given = number(cells, LAYERS)
    found = re.search(r"\d{1,4}", cells["recompute"])
    return given if given is not None else int(found[0]) if found else 1
