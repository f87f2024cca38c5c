"""ORS: reduce-scatters of weight gradients run beside the backward pass, a layer's at a time.

A scatter reads the whole gradient of a weight, which lives until compute has waited for the
scatter. If all waits stood at the end of the pass, the whole gradients of all layers would live
until then (142 GiB of gpt-80b), unless something else makes compute wait for the stream, as
weight gathers of the next layers do. So compute waits for a scatter when as many more as a layer
has are issued; by then it is mostly done. FSDP bounds them too: PyTorch's waits for the last one
before the next (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py); AxoNN waits at the end
alone, and its gradients' memory is given back by the allocator when a scatter is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from workload.op import ADD_SCATTERED, GRAD_SCATTER, INPUT_GRAD, NONE, WEIGHT_GRAD, Op
from workload.passes.moving import follow_up_later, on_own_stream

MOVED = (GRAD_SCATTER,)
IN_FLIGHT = 4  # reduce-scatters: those of a layer


def defer_reduce_scatters(ops: Sequence[Op]) -> list[Op]:
    """Reduce-scatters run beside the backward pass; no more than `IN_FLIGHT` are not awaited.

    The additions to the gradients, which wait for them, move behind a later scatter, the last ones
    behind the micro-batch's last op.
    Where no all-reduce of dI gives cover, dW is computed first so that its scatter starts earlier.
    """
    result: list[Op] = []
    deferred: list[Op] = []
    micro_batch = NONE
    for op in _weight_gradients_first(ops):
        current = op.block.micro_batch
        if current != micro_batch:
            result += deferred
            deferred, micro_batch = [], current
        if op.purpose == GRAD_SCATTER:
            result.append(on_own_stream(op))
            while len(deferred) >= IN_FLIGHT:
                result.append(deferred.pop(0))
        elif op.purpose == ADD_SCATTERED:
            deferred.append(op)
        else:
            result.append(op)
    return result + deferred


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
