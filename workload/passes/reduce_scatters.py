"""ORS: reduce-scatters of weight gradients run beside the backward pass, a layer's at a time.

A scatter reads the whole gradient of a weight, which lives until compute has waited for the
scatter. If all waits stood at the end of the pass, the whole gradients of all layers would live
until then (142 GiB of gpt-80b), unless something else makes compute wait for the stream, as
weight gathers of the next layers do. So compute waits for a scatter when as many more as a layer
has are issued; by then it is mostly done. FSDP bounds them too: PyTorch's waits for the last one
before the next (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py); AxoNN waits at the end
alone, and its gradients' memory is given back by the allocator when a scatter is done.

Some stacks reduce in the dtype in which gradients are summed (`in_dtype_of_sums`), others, as our
executor, in that of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from workload.moving import follow_up_later, on_own_stream
from workload.naming import op_name
from workload.op import (
    ADD_SCATTERED,
    COMPUTE,
    GRAD_SCATTER,
    GRADIENT_SEND,
    INPUT_GRAD,
    ITEM_BYTES,
    NO_ATTRIBUTES,
    NONE,
    WEIGHT_GRAD,
    Buffer,
    Op,
    altered,
)

IN_FLIGHT = 4  # reduce-scatters: those of a layer


def defer_reduce_scatters(ops: Sequence[Op]) -> list[Op]:
    """Reduce-scatters run beside the backward pass; no more than `IN_FLIGHT` are not awaited.

    The additions to the gradients, which wait for them, move behind a later scatter, the last ones
    behind the micro-batch's last op.
    Where no all-reduce of dI gives cover, dW is computed first so that its scatter starts earlier.
    """
    result: list[Op] = []
    deferred: list[list[Op]] = []  # additions, each with the copy of its sum to the host, if any
    micro_batch = NONE
    for op in _weight_gradients_first(ops):
        current = op.block.micro_batch
        if current != micro_batch:
            result += chain.from_iterable(deferred)
            deferred, micro_batch = [], current
        if op.purpose == GRAD_SCATTER:
            result.append(on_own_stream(op))
            while len(deferred) >= IN_FLIGHT:
                result += deferred.pop(0)
        elif op.purpose == ADD_SCATTERED:
            deferred.append([op])
        elif op.purpose == GRADIENT_SEND and deferred:
            deferred[-1].append(op)
        else:
            result.append(op)
    return [*result, *chain.from_iterable(deferred)]


def _weight_gradients_first(ops: Sequence[Op]) -> list[Op]:
    result = list(ops)
    for index in range(len(result) - 2):
        if result[index].purpose != INPUT_GRAD:
            continue
        first, second, third = result[index : index + 3]
        if (second.purpose, third.purpose) == (WEIGHT_GRAD, GRAD_SCATTER):
            result[index : index + 3] = [second, third, first]
    return result


def follow_scatters(ops: Sequence[Op]) -> list[Op]:
    """Of two reduce-scatters of one gradient, the second comes behind the next gradient's first."""
    return follow_up_later(ops, lambda op: op.purpose == GRAD_SCATTER)


def in_dtype_of_sums(
    ops: Sequence[Op], buffers: Mapping[str, Buffer]
) -> tuple[list[Op], dict[str, Buffer]]:
    """Each micro-batch's gradients of weights are reduced in the dtype of the sums that they are
    added to: where that is a wider one, they are cast before, by a kernel of its own.

    Returns the ops and the buffers that are others or new. Source: pytorch/pytorch,
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce: gradients are copied
    into the scatter's input in reduce_dtype.
    """
    wide = _scattered_to_wide_sums(ops, buffers)
    result: list[Op] = []
    added: dict[str, Buffer] = {}

    def sized(name: str) -> int:
        return (added.get(name) or buffers[name]).nbytes

    for op in ops:
        if op.purpose == GRAD_SCATTER and op.writes[0] in wide:
            source, part = op.reads[0], op.writes[0]
            added[part] = replace(buffers[part], dtype=wide[part])
            if source not in added:
                cast = _cast(op, buffers[source], wide[part])
                added[cast.writes[0]] = replace(
                    buffers[source], name=cast.writes[0], dtype=wide[part]
                )
                result.append(cast)
                source = cast.writes[0]
            own = {"reads": (source,), "dtype": wide[part], "nbytes": sized(source)}
            result.append(altered(op, **own))
        elif op.purpose == ADD_SCATTERED and op.reads[0] in added:
            result.append(altered(op, nbytes=sum(map(sized, (*op.reads, *op.writes)))))
        else:
            result.append(op)
    return result, added


def _scattered_to_wide_sums(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> dict[str, str]:
    """The dtype of the sums by the parts of gradients that come from a scatter in a narrower one,
    in one or several steps."""
    found: dict[str, str] = {}
    for op in ops:
        if op.kind == "accumulate" and op.purpose == ADD_SCATTERED:
            dtype = buffers[op.writes[0]].dtype
            if ITEM_BYTES[dtype] > ITEM_BYTES[buffers[op.reads[0]].dtype]:
                found[op.reads[0]] = dtype
    for op in reversed(ops):
        if op.purpose == GRAD_SCATTER and op.writes[0] in found:
            found[op.reads[0]] = found[op.writes[0]]
    return found


def _cast(scatter: Op, source: Buffer, dtype: str) -> Op:
    """The cast of a gradient in front of its reduce-scatter."""
    label = f"{scatter.label}.cast"
    name = op_name(scatter.micro_batch, scatter.part, label, recomputed=scatter.is_recomputed)
    return altered(
        scatter,
        name=name,
        kind="cast",
        reads=(source.name,),
        writes=(f"{name}.o",),
        stream=COMPUTE,
        axes=(),
        nbytes=source.elements * (ITEM_BYTES[source.dtype] + ITEM_BYTES[dtype]),
        attributes=NO_ATTRIBUTES,
        label=label,
        purpose="",
        launches=1,
    )
