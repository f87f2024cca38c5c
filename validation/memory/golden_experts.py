"""What a golden run's arguments say of experts: fields of the model, and words of the plan.

Source: github.com/NVIDIA/Megatron-LM, megatron/training/arguments.py: without --moe-ffn-hidden-size
an expert is as wide as --ffn-hidden-size, without --expert-tensor-parallel-size it is split as all
linears are. Sinkhorn's assignment is taken for a choice by scores, whose rows are as many. Without
--moe-grouped-gemm each expert's linears run by themselves on views of the same rows, and what they
give is joined (megatron/core/transformer/moe/experts.py, SequentialMLP): what is kept is as large
as with grouped ones; their biases, under 1 % of the states, are left out. "flex" with deepep or
hybridep sends a token once to a node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from validation.memory.golden_flags import argument
from workload.exchange.table import ALL_TO_ALL, IN_MEGATRON

Whole = Callable[[str, int], int]  # the number in a column, or the one that stands for none
COLUMNS = (
    "topk", "moe_ffn", "shared_expert_ffn", "ep", "etp", "dispatcher", "moe_grouped_gemm",
)  # fmt: skip
PATTERN = re.compile(r"\(\[0\]\*(\d{1,4})\+\[1\]\*\d+\)")
REFUSED_FLAGS = {
    ";moe-expert-capacity-factor=": "a capacity of experts",
}


def refusal(cells: Mapping[str, str]) -> str | None:
    """What of a row with experts no plan stands for, if anything."""
    if lacking := [column for column in COLUMNS if column not in cells]:
        return f"experts without the column {lacking[0]}"
    if cells["dispatcher"] not in IN_MEGATRON:
        return f"dispatcher {cells['dispatcher']}"
    return next((said for flag, said in REFUSED_FLAGS.items() if flag in cells["notes"]), None)


def fields_of(cells: Mapping[str, str], whole: Whole) -> dict[str, Any]:
    """The fields of a model with experts."""
    pattern, topk = PATTERN.fullmatch(argument(cells, "moe-layer-freq") or ""), whole("topk", 0)
    plain = {} if cells["moe_grouped_gemm"] == "1" else {"biases": False}
    return {
        **plain,
        "experts": whole("experts", 0),
        "topk": topk,
        "expert_ffn": whole("moe_ffn", 0) or whole("ffn", 0),
        "shared_ffn": whole("shared_expert_ffn", 0),
        "dense_layers": int(pattern[1]) if pattern else 0,
        "router": "softmax" if topk == 1 else "softmax-topk",
    }


def words_of(cells: Mapping[str, str], whole: Whole) -> dict[str, Any]:
    """The plan's words on experts."""
    expert, x = whole("ep", 1), whole("tp", 1)
    words: dict[str, Any] = {"ep": expert}
    if (within := whole("etp", x)) != x:
        words["etp"] = within
    if expert > 1 and (found := IN_MEGATRON[cells["dispatcher"]]) is not ALL_TO_ALL:
        words["dispatcher"] = found.dispatcher
    return words
