"""Buffers in which gradients are collected before they are sent to the ranks that keep them.

Under zero=1 and 2 they exist while gradients are reduced: in each micro-batch's backward pass or,
in a pipeline, behind all of them; there are two where that runs beside the backward pass. Under
zero=3 there is one all the time.

Source: deepspeedai/DeepSpeed@edaa722, deepspeed/runtime/zero/stage_1_and_2.py (setup_buckets,
reduce_gradients, _release_ipg_buffers) and stage3.py (_setup_for_real_optimizer).
"""

from __future__ import annotations

from collections.abc import Sequence

from workload.lowering.builder import Builder
from workload.naming import op_name
from workload.op import MODEL, NONE, STEP, Buffer, Op, altered
from workload.pipeline.schedule import BACKWARD

NAME, ROLE = "zero.bucket", "workspace"
BESIDE = {"dp", "ors"}  # overlaps that reduce gradients beside the backward pass


def with_buckets(b: Builder, ops: Sequence[Op]) -> list[Op]:
    """The ops, of which the first and the last that a bucket exists for write and read it."""
    size, plan, result = b.held.bucket, b.plan, list(ops)
    accumulates = plan.zero == 1 and b.dtype != b.wide == b.summed  # BF16_Optimizer has none
    if not size or not plan.zero or accumulates:
        return result
    if plan.zero == 3:
        b.add(Buffer(NAME, (size,), b.dtype, ROLE, True, b.grid.ranks))
        return result
    several = 2 if plan.pp == 1 and BESIDE & {*plan.training.overlap} else 1
    for micro_batch, places in _spans(ops, in_step=plan.pp > 1).items():
        name = op_name(micro_batch, MODEL, NAME)
        b.add(Buffer(name, (several * size,), b.dtype, ROLE))
        first, last = places[0], places[-1]
        result[first] = altered(result[first], writes=(*result[first].writes, name))
        result[last] = altered(result[last], reads=(*result[last].reads, name))
    return result


def _spans(ops: Sequence[Op], *, in_step: bool) -> dict[int, list[int]]:
    """Where the compute ops stand during which there is a bucket, by micro-batch: of the backward
    passes, or of the step's end up to the norm of all gradients."""
    found: dict[int, list[int]] = {}
    for at, op in enumerate(ops):
        if op.communicates:
            continue
        if in_step and op.block == STEP and NONE not in found:
            found[NONE] = [at]
        elif not in_step and op.block.work == BACKWARD:
            found.setdefault(op.block.micro_batch, []).append(at)
    return found
