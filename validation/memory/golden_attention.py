"""How a golden run computes attention.

`--attention-backend auto` leaves it to Transformer Engine, which takes a fused kernel where it has
one. Version 1.2 has none that is deterministic on an A100: with NVTE_ALLOW_NONDETERMINISTIC_ALGO=0
it leaves out FlashAttention 2, and cuDNN's attention of more than 512 tokens on all but sm90. The
image with long-term support had version 1.2 (nvcr.io/nvidia/pytorch:24.01-py3) up to 6 November
2025, when 25.09 with Transformer Engine 2.9 replaced it.
Sources: NVIDIA/TransformerEngine v1.2, transformer_engine/pytorch/attention.py, DotProductAttention
(its __init__, and "Filter: determinism" in forward); NVIDIA/Megatron-LM@08a0a19,
.gitlab/stages/01.build.yml, and @23a1dca, docker/.ngc_version.lts; NVIDIA's release notes of image
24.01, which name Transformer Engine v1.2.
"""

from __future__ import annotations

from datetime import date

from validation.memory.golden_flags import Cells, argument, is_long_term, recorded

UNFUSED, FUSED = "unfused", "flash"
SUCCEEDED = date(2025, 11, 6)
SM90 = ("H100",)
MOST_OF_SHORT = 512  # tokens, up to which cuDNN's other attention serves


def attention(cells: Cells) -> str:
    """The plan's word for a run's attention."""
    given = cells["attention_backend"]
    if given == UNFUSED or (cells["transformer_impl"] == "local" and FUSED not in given):
        return UNFUSED
    return UNFUSED if given == "auto" and _finds_none(cells) else FUSED


def _finds_none(cells: Cells) -> bool:
    """Whether Transformer Engine of the image has no fused kernel that may be used."""
    day = recorded(cells)
    is_old = is_long_term(cells) and day is not None and day < SUCCEEDED
    fixed = argument(cells, "env.NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
    is_short = cells["seq_len"].isdecimal() and int(cells["seq_len"]) <= MOST_OF_SHORT
    return is_old and fixed and cells["platform_gpu"] not in SM90 and not is_short
