"""ORS: reduce-scatters of weight gradients run beside the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from workload.op import ADD_SCATTERED, GRAD_SCATTER, INPUT_GRAD, NONE, WEIGHT_GRAD, Op
from workload.passes.moving import follow_up_later, on_own_stream

MOVED = (GRAD_SCATTER,)


def defer_reduce_scatters(ops: Sequence[Op]) -> list[Op]:
    """Reduce-scatters run beside the backward pass and are awaited at its end.

    The additions to the gradients, which wait for them, move behind the micro-batch's last op.
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
        elif op.purpose == ADD_SCATTERED:
            deferred.append(op)
        else:
            result.append(op)
    return result + deferred


def _weight_gradients_first(ops: Sequence[Op]) -> list[Op]:
    result = list(ops)
    for index in range(len(result) - 2):
        purposes = [op.purpose for op in result[index : index + 3]]
        if purposes == [INPUT_GRAD, WEIGHT_GRAD, GRAD_SCATTER]:
            first, second, third = result[index : index + 3]
            result[index : index + 3] = [second, third, first]
    return result


def follow_scatters(ops: Sequence[Op]) -> list[Op]:
    """Of two reduce-scatters of one gradient, the second comes behind the next gradient's first."""
    return follow_up_later(ops, lambda op: op.purpose == GRAD_SCATTER)
