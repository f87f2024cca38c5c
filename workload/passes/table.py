"""All overlaps, one row each: what a plan's `overlap` may name.

A row says at which level its pass works, what it moves onto streams of its own, when it can matter
and from whom it comes. The lowering, the search with its bounds, the what-ifs and `Plan` read them
here; a new overlap is a module beside this one and a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from topologies.records import record
from workload.op import BACKWARD, COMPUTE, FORWARD, WEIGHT, Block, Buffer, Op
from workload.passes import (
    data_parallel,
    input_gradients,
    reduce_scatters,
    weight_gathers,
)
from workload.passes.exchanges import other_micro_batch, shared_experts
from workload.pipeline.schedule import Slot

SLOT, STEP, MESSAGES, HALVES = "slot", "step", "messages", "halves"
WORKS = (FORWARD, BACKWARD, WEIGHT)
Pass = Callable[[Sequence[Op]], list[Op]]
StepPass = Callable[[Sequence[Op], Mapping[str, Buffer], Mapping[Block, Slot]], list[Op]]
# Of a plan's axes, `expert`, `zero` and `shard`, and a model's `shared_ffn`: numbers, or arrays
Sizes = Mapping[str, Any]


@record
class Overlap:
    """One overlap.

    `scope` is what its pass goes over: the ops of a "slot" (`moves`, and when all slot passes are
    through, `settles`), those of the whole "step" (`moves_step`), the "messages", which the
    lowering of messages issues itself, or the two "halves" of a backward pass, which that of chunks
    puts together. `works` are the works of slots in which it moves any op, and
    with `last` it does so in the last micro-batch alone. `purposes` are those of the collectives
    that it gives a stream of their own; `matters` says, for sizes, whether there are any. A
    collective that it moves may end in a later layer if it is `across`. One that is not `usual` is
    switched on by name alone, and not searched.
    """

    name: str
    words: str
    source: str
    scope: str
    matters: Callable[[Sizes], Any]
    purposes: tuple[str, ...] = ()
    works: tuple[str, ...] = WORKS
    last: bool = False
    across: bool = False
    usual: bool = True
    moves: Pass = list
    settles: Pass = list
    moves_step: StepPass | None = None


PASSES = (
    Overlap(
        name="oar",
        words="input-gradient all-reduce beside the weight-gradient matmul",
        source="AxoNN (SC24), section 5; Megatron-LM, tensor_parallel/layers.py",
        scope=SLOT,
        matters=lambda sizes: (sizes["tp"] > 1) | (sizes["y"] > 1),
        purposes=input_gradients.MOVED,
        works=(BACKWARD, WEIGHT),
        across=True,
        moves=input_gradients.overlap_input_gradients,
    ),
    Overlap(
        name="ors",
        words="reduce-scatters beside the backward pass, awaited a layer later",
        source="AxoNN (SC24), section 5; axonn, intra_layer/fully_connected.py",
        scope=SLOT,
        matters=lambda sizes: (sizes["z"] > 1) | data_parallel.shards(sizes, 2),
        purposes=reduce_scatters.MOVED,
        works=(BACKWARD, WEIGHT),
        across=True,
        moves=reduce_scatters.defer_reduce_scatters,
        settles=reduce_scatters.follow_scatters,
    ),
    Overlap(
        name="oag",
        words="weight gathers one linear ahead",
        source="AxoNN (SC24), section 5: one module ahead, and anew in each recomputed block",
        scope=SLOT,
        matters=lambda sizes: (sizes["z"] > 1) | data_parallel.shards(sizes, 3),
        purposes=weight_gathers.MOVED,
        across=True,
        moves=weight_gathers.gather_ahead,
    ),
    Overlap(
        name="shared",
        words="experts' all-to-alls beside the MLP that all tokens pass",
        source="Megatron-Core, moe_shared_expert_overlap: transformer/moe/shared_experts.py",
        scope=SLOT,
        matters=lambda sizes: sizes["ep"] > 1,
        purposes=shared_experts.MOVED,
        moves=shared_experts.overlap_exchanges,
    ),
    Overlap(
        name="a2a",
        words="experts' all-to-alls beside another micro-batch's compute, in turns",
        source="Megatron-Core, overlap_moe_expert_parallel_comm: combined_1f1b.py",
        scope=STEP,
        usual=False,
        matters=lambda sizes: sizes["ep"] > 1,
        moves_step=other_micro_batch.take_turns,
    ),
    Overlap(
        name="wgrad",
        words="gradients of weights put off until the next all-to-all of the backward pass",
        source="Megatron-Core, delay_wgrad_compute: model_chunk_schedule_plan.py",
        scope=HALVES,
        across=True,
        usual=False,
        matters=lambda sizes: sizes["ep"] > 1,
    ),
    Overlap(
        name="dp",
        words="gradient collectives bucket by bucket beside the backward pass and gathers of "
        "updated parameters beside AdamW",
        source="PyTorch DDP (2006.15704), section 3.2; Megatron-LM, overlap-param-gather",
        scope=STEP,
        matters=data_parallel.summed_at_end,
        purposes=data_parallel.MOVED,
        works=(BACKWARD, WEIGHT),
        last=True,
        moves_step=data_parallel.overlap_data_parallelism,
    ),
    Overlap(
        name="pp",
        words="sends between stages beside the next micro-batch's compute",
        source="Megatron-LM, overlap-p2p-communication",
        scope=MESSAGES,
        works=(),
        matters=lambda sizes: sizes["pp"] > 1,
    ),
)
EVERY = tuple(each.name for each in PASSES)
OVERLAPS = tuple(each.name for each in PASSES if each.usual)
WITHIN_SLOTS = tuple(each.name for each in PASSES if each.scope == SLOT)
_SWITCH_OF = {purpose: each.name for each in PASSES for purpose in each.purposes}


def overlap_slot(ops: Sequence[Op], overlap: Collection[str]) -> list[Op]:
    """Apply to a slot's ops the overlaps within it that are switched on."""
    result = list(ops)
    chosen = [each for each in PASSES if each.name in overlap and each.scope == SLOT]
    for each in chosen:
        result = each.moves(result)
    for each in chosen:
        result = each.settles(result)
    return result


def overlap_step(
    ops: Sequence[Op],
    overlap: Collection[str],
    buffers: Mapping[str, Buffer],
    slot_of: Mapping[Block, Slot],
) -> list[Op]:
    """Apply to a whole step's ops the overlaps across its slots that are switched on."""
    result = list(ops)
    for each in PASSES:
        if each.name in overlap and each.moves_step is not None:
            result = each.moves_step(result, buffers, slot_of)
    return result


def mattering(overlap: Collection[str], sizes: Sizes) -> list[Overlap]:
    """The rows of some overlaps, by name, that have something to overlap for these sizes."""
    return [each for each in PASSES if each.name in overlap and bool(each.matters(sizes))]


def switch_of(op: Op) -> str:
    """The overlap that put an op on a stream of its own; "" where none did, as of
    the exchanges of a ring, which always have one."""
    if op.stream == COMPUTE or not op.is_collective:
        return ""
    return _SWITCH_OF.get(op.purpose, "")


def concerning(overlap: Collection[str], works: Collection[str], *, last: bool) -> tuple[str, ...]:
    """Those of some overlaps that move ops of slots with these works, of the last micro-batch or of
    another one."""
    return tuple(
        each.name
        for each in PASSES
        if each.name in overlap and (last or not each.last) and set(each.works) & set(works)
    )
