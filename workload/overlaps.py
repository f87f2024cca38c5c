"""All overlaps, one row each: what a plan's `overlap` may name.

A row says at which level its pass works, what it moves onto streams of its own, when it can matter
and from whom it comes. `Plan`, the search with its bounds and the what-ifs read them here; the
lowering applies their passes (`workload/passes/table.py`). A new overlap is a row here, and a
module beside that table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from topologies.records import record
from workload.op import (
    BACKWARD,
    BUCKET_REDUCE,
    BUCKET_SCATTER,
    COMPUTE,
    EXPERT_COMBINE,
    EXPERT_DISPATCH,
    FORWARD,
    GRAD_SCATTER,
    INPUT_GRAD_REDUCE,
    PARAMETER_GATHER,
    SOURCE_GATHER,
    WEIGHT,
    WEIGHT_GATHER,
    Op,
)

SLOT, STEP, MESSAGES, HALVES = "slot", "step", "messages", "halves"
WORKS = (FORWARD, BACKWARD, WEIGHT)
# Of a plan's axes, `expert`, `zero` and `shard`, and a model's `shared_ffn`: numbers, or arrays
Sizes = Mapping[str, Any]


@record
class Overlap:
    """One overlap.

    `scope` is what its pass goes over: the ops of a "slot", those of the whole "step", the
    "messages", which the lowering of messages issues itself, or the two "halves" of a backward
    pass, which that of chunks puts together. `works` are the works of slots in which it moves any
    op, and with `last` it does so in the last micro-batch alone. `purposes` are those of the
    collectives that it gives a stream of their own; `matters` says, for sizes, whether there are
    any. What it moves is in flight over so many layers as a rule, and at most (`reach`). One that
    is not `usual` is switched on by name alone, and not searched.
    """

    name: str
    words: str
    source: str
    scope: str
    matters: Callable[[Sizes], Any]
    purposes: tuple[str, ...] = ()
    works: tuple[str, ...] = WORKS
    last: bool = False
    reach: tuple[int, int] = (0, 0)
    usual: bool = True


def _shards(sizes: Sizes, least: int) -> Any:
    """Whether data or context shards what ZeRO shards from a stage on."""
    wide = (sizes["dp"] > 1) & (sizes["shard"] > 1) | (sizes["cp"] > 1)
    return wide & (sizes["zero"] >= least)


def _summed_at_end(sizes: Sizes) -> Any:
    """Whether gradients are left to be summed over copies or over S: those over rows of x too."""
    left = (sizes["zero"] < 3) | (sizes["dp"] > sizes["shard"])
    return (((sizes["dp"] > 1) | (sizes["cp"] > 1)) & left) | (sizes["sums_rows"] > 0)


OAR = Overlap(
    name="oar",
    words="input-gradient all-reduce beside the weight-gradient matmul",
    source="AxoNN (SC24), section 5; Megatron-LM, tensor_parallel/layers.py",
    scope=SLOT,
    matters=lambda sizes: (sizes["tp"] > 1) | (sizes["y"] > 1),
    purposes=(INPUT_GRAD_REDUCE, SOURCE_GATHER),
    works=(BACKWARD, WEIGHT),
)
ORS = Overlap(
    name="ors",
    words="reduce-scatters beside the backward pass, awaited a layer later",
    source="AxoNN (SC24), section 5; axonn, intra_layer/fully_connected.py",
    scope=SLOT,
    matters=lambda sizes: (sizes["z"] > 1) | _shards(sizes, 2),
    purposes=(GRAD_SCATTER,),
    works=(BACKWARD, WEIGHT),
    reach=(1, 2),
)
OAG = Overlap(
    name="oag",
    words="weight gathers one linear ahead",
    source="AxoNN (SC24), section 5: one module ahead, and anew in each recomputed block",
    scope=SLOT,
    matters=lambda sizes: (sizes["z"] > 1) | _shards(sizes, 3),
    purposes=(WEIGHT_GATHER,),
    reach=(1, 1),
)
SHARED = Overlap(
    name="shared",
    words="experts' all-to-alls beside the MLP that all tokens pass",
    source="Megatron-Core, moe_shared_expert_overlap: transformer/moe/shared_experts.py",
    scope=SLOT,
    matters=lambda sizes: sizes["ep"] > 1,
    purposes=(EXPERT_DISPATCH, EXPERT_COMBINE),
)
A2A = Overlap(
    name="a2a",
    words="experts' all-to-alls beside another micro-batch's compute, in turns",
    source="Megatron-Core, overlap_moe_expert_parallel_comm: combined_1f1b.py",
    scope=STEP,
    usual=False,
    matters=lambda sizes: sizes["ep"] > 1,
)
WGRAD = Overlap(
    name="wgrad",
    words="gradients of weights put off until the next all-to-all of the backward pass",
    source="Megatron-Core, delay_wgrad_compute: model_chunk_schedule_plan.py",
    scope=HALVES,
    reach=(1, 2),
    usual=False,
    matters=lambda sizes: sizes["ep"] > 1,
)
DP = Overlap(
    name="dp",
    words="gradient collectives bucket by bucket beside the backward pass and gathers of "
    "updated parameters beside AdamW",
    source="PyTorch DDP (2006.15704), section 3.2; Megatron-LM, overlap-param-gather",
    scope=STEP,
    matters=_summed_at_end,
    purposes=(BUCKET_SCATTER, BUCKET_REDUCE, PARAMETER_GATHER),
    reach=(0, 1),
    works=(BACKWARD, WEIGHT),
    last=True,
)
PP = Overlap(
    name="pp",
    words="sends between stages beside the next micro-batch's compute",
    source="Megatron-LM, overlap-p2p-communication",
    scope=MESSAGES,
    works=(),
    matters=lambda sizes: sizes["pp"] > 1,
)
ROWS = (OAR, ORS, OAG, SHARED, A2A, WGRAD, DP, PP)
EVERY = tuple(each.name for each in ROWS)
OVERLAPS = tuple(each.name for each in ROWS if each.usual)
WITHIN_SLOTS = tuple(each.name for each in ROWS if each.scope == SLOT)
_SWITCH_OF = {purpose: each.name for each in ROWS for purpose in each.purposes}


def mattering(overlap: Collection[str], sizes: Sizes) -> list[Overlap]:
    """The rows of some overlaps, by name, that have something to overlap for these sizes."""
    return [each for each in ROWS if each.name in overlap and bool(each.matters(sizes))]


def switch_of(op: Op) -> str:
    """The overlap that put an op on a stream of its own; "" where none did, as of
    the exchanges of a ring, which always have one."""
    if op.stream == COMPUTE or not op.is_collective:
        return ""
    return _SWITCH_OF.get(op.purpose, "")


def concerning(overlap: Collection[str], works: Collection[str], *, last: bool) -> tuple[str, ...]:
    """Name the given overlaps that move ops of slots with these works, of the last micro-batch or
    of another one."""
    return tuple(
        each.name
        for each in ROWS
        if each.name in overlap and (last or not each.last) and set(each.works) & set(works)
    )
