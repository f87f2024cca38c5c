"""The passes of all overlaps.

What is known of an overlap besides says its row (`workload/overlaps.py`); one without a pass here
is a matter of the lowering of messages or of chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from workload.op import Block, Buffer, Op
from workload.overlaps import A2A, DP, OAG, OAR, ORS, SHARED
from workload.passes.data_parallel import overlap_data_parallelism
from workload.passes.exchanges.other_micro_batch import take_turns
from workload.passes.exchanges.shared_experts import overlap_exchanges
from workload.passes.input_gradients import overlap_input_gradients
from workload.passes.reduce_scatters import defer_reduce_scatters, follow_scatters
from workload.passes.weight_gathers import gather_ahead
from workload.pipeline.schedule import Slot

Pass = Callable[[Sequence[Op]], list[Op]]
StepPass = Callable[[Sequence[Op], Mapping[str, Buffer], Mapping[Block, Slot]], list[Op]]
SLOT_PASSES: Mapping[str, Pass] = {
    OAR.name: overlap_input_gradients,
    ORS.name: defer_reduce_scatters,
    OAG.name: gather_ahead,
    SHARED.name: overlap_exchanges,
}
SETTLING: Mapping[str, Pass] = {ORS.name: follow_scatters}  # once all of a slot are through
STEP_PASSES: Mapping[str, StepPass] = {A2A.name: take_turns, DP.name: overlap_data_parallelism}


def overlap_slot(ops: Sequence[Op], overlap: Collection[str]) -> list[Op]:
    """Apply to a slot's ops the overlaps within it that are switched on."""
    result = list(ops)
    for passes in (SLOT_PASSES, SETTLING):
        for name, moves in passes.items():
            if name in overlap:
                result = moves(result)
    return result


def overlap_step(
    ops: Sequence[Op],
    overlap: Collection[str],
    buffers: Mapping[str, Buffer],
    slot_of: Mapping[Block, Slot],
) -> list[Op]:
    """Apply to a whole step's ops the overlaps across its slots that are switched on."""
    result = list(ops)
    for name, moves in STEP_PASSES.items():
        if name in overlap:
            result = moves(result, buffers, slot_of)
    return result
