"""In which order a stage whose messages block sends and receives between two of its slots.

DeepSpeed's pipeline engine performs its instructions one after another on the stream of compute,
messages too. Between two slots it sends what the first one made, then receives what the second one
needs. Where a backward pass follows the forward pass of the step before, and so the next stage has
just run a backward pass too, it is the other way round: both ends then have the gradient first.
Source: deepspeedai/DeepSpeed, deepspeed/runtime/pipe/schedule.py, TrainSchedule.steps; engine.py,
PipelineEngine._exec_schedule; p2p.py, send and recv.

Why no two stages wait for each other: 1F1B gives stage s the forward pass of micro-batch m in step
2 m + s and its backward pass in step 2 m + 2 stages - 1 - s. So a gradient is received first only
behind the forward pass that is as many micro-batches ahead as there are stages behind, right one
step before, and the next stage is then between a backward and a forward pass, where it sends first.
"""

from __future__ import annotations

from workload.pipeline.schedule import BACKWARD, FORWARD, Slot


def receives_first(before: Slot, slot: Slot, stages_behind: int) -> bool:
    """Whether a stage receives what `slot` needs before it sends what the slot `before` made.

    >>> receives_first(Slot("forward", 0, 3), Slot("backward", 0, 0), 3)
    True
    >>> receives_first(Slot("backward", 0, 0), Slot("forward", 0, 4), 3)
    False
    """
    turns = before.work == FORWARD and slot.work == BACKWARD
    return turns and before.micro_batch - slot.micro_batch == stages_behind
