"""What a matmul reads and writes that adds its product to a weight's gradient by itself.

The product is not written on its own, and not read again: the gradient is read and written in its
place, in the gradient's data type. Where few rows reach each of many experts, that is what the
matmul waits for. Source: NVIDIA/TransformerEngine, fuse_wgrad_accumulation of its linears; grouped
matmuls on a B200 that add to fp32 gradients run at 0.6 to 0.7 of its bandwidth by this count
(MooreThreads/SimuMax@4dcaae5, configs/system/b200_bf16_ceperm.json, stage bwd_grad_w).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workload.op import WEIGHT_GRAD, Buffer, Op, altered

ADDITION = "accumulate"


def added_by_matmuls(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> dict[str, int]:
    """By the name of a matmul, how many bytes more it moves when it adds to the gradient itself.
    A product that is reduced over ranks first is written all the same."""
    makers = {op.writes[0]: op.name for op in ops if op.purpose == WEIGHT_GRAD}
    additions = ((op, op.reads[0]) for op in ops if op.kind == ADDITION)
    return {
        makers[product]: op.nbytes - 2 * buffers[product].nbytes
        for op, product in additions
        if product in makers
    }


def inside_neighbours(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], fused: Sequence[str]
) -> list[Op]:
    """The ops where those of kinds or labels in `fused` run inside a neighbour's kernel, so that
    none of their bytes go through memory on their own; a gradient that a matmul adds to is read and
    written by it."""
    added = added_by_matmuls(ops, buffers) if ADDITION in fused else {}

    def changed(op: Op) -> Op:
        if op.kind in fused or op.label in fused:
            return altered(op, nbytes=0, launches=0)
        more = added.get(op.name, 0)
        return altered(op, nbytes=op.nbytes + more) if more else op

    return [changed(op) for op in ops]
