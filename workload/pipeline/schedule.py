"""Pipeline schedules: the order in which a stage runs its forward and backward passes.

A schedule is a pure function from (stage, stages, micro-batches, chunks) to slots. A stage has
`chunks` parts of the model; `workload/pipeline/chunk_places.py` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from workload.pipeline.in_flight import played
from workload.pipeline.order import Order
from workload.pipeline.slot import BACKWARD, FORWARD, INPUT, SILENT, WEIGHT, Slot
from workload.pipeline.v_shape import dual_pipe, dual_pipe_v, zero_bubble_v
from workload.pipeline.warm_up import in_turn, warm_up
from workload.sizes.arrays import Indices

__all__ = [
    "BACKWARD",
    "FORWARD",
    "OPPOSED",
    "SILENT",
    "STRAIGHT",
    "TURNS_LATE",
    "TWO_WAY",
    "V_SHAPED",
    "WEIGHT",
    "Slot",
    "slots",
    "ways",
]
STRAIGHT = ("1f1b", "gpipe", "zb-h1", "zb-1p", "zb-2p")  # chunks follow each other round a ring
V_SHAPED = ("zb-v", "dualpipe-v")
TWO_WAY = ("dualpipe",)  # every stage holds a part of each of two copies of the model
OPPOSED = (*V_SHAPED, *TWO_WAY)  # second chunks stand in the opposite order of stages
TURNS_LATE = (
    "dualpipe-v",
    "dualpipe",
)  # some micro-batches leave the head slots before they go back there


def slots(
    schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1, more: int = 0
) -> Order:
    """The slots of one stage in the order in which it runs them; chunks in turns warm up longer by
    so many `more`.

    >>> [f"{slot.work[0]}{slot.micro_batch}" for slot in slots("1f1b", 0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    if chunks > 1 and schedule not in OPPOSED:
        return _interleaved(stage, stages, micro_batches, chunks, more)
    return Order.of(_SCHEDULES[schedule](stage, stages, micro_batches))


def ways(schedule: str) -> int:
    """In how many directions micro-batches pass the stages, each with parameters of its own."""
    return 2 if schedule in TWO_WAY else 1


def _gpipe(stage: int, stages: int, micro_batches: int) -> Order:
    """All forward passes, then all backward passes. Source: Huang et al. (1811.06965)."""
    m = np.arange(micro_batches)
    return Order.by_place((FORWARD, m, 0 * m, m), (BACKWARD, m + micro_batches, 0 * m, m))


def _one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Order:
    """A forward for each stage behind, then in turns. Source: Narayanan et al. (SC21), 2.2."""
    ahead = warm_up(stage, stages, micro_batches, 1)
    m = np.arange(micro_batches)
    return _in_turns(ahead, (0 * m, m), (0 * m, m))


def _interleaved(stage: int, stages: int, count: int, chunks: int, more: int) -> Order:
    """1F1B over virtual stages: each chunk in turn gets as many micro-batches as there are stages,
    or a few more (`in_turn`); in the last turn those that are left.

    Source: Narayanan et al. (SC21), section 2.2; the warm-up as in Megatron-LM's schedules.py.
    """
    each = in_turn(stages, count)
    turn, within = np.divmod(np.arange(count * chunks), each * chunks)
    chunk, m = np.divmod(within, np.minimum(each, count - turn * each))
    m += turn * each
    ahead = warm_up(stage, stages, count, chunks, more)
    return _in_turns(ahead, (chunk, m), (chunks - 1 - chunk, m))


def _in_turns(
    ahead: int, forward: tuple[Indices, Indices], backward: tuple[Indices, Indices]
) -> Order:
    """So many forward passes, then a forward and a backward pass in turns, then the backward passes
    that are left, given the chunks and micro-batches of both."""
    number = np.arange(len(forward[0]))
    forwards = number + np.maximum(number - ahead, 0)
    backwards = number + np.minimum(number + ahead + 1, len(number))
    return Order.by_place((FORWARD, forwards, *forward), (BACKWARD, backwards, *backward))


def _zero_bubble_h1(stage: int, stages: int, micro_batches: int) -> Iterator[Slot]:
    """1F1B whose weight gradients wait `stage` slots, so that all stages hold as much.

    Source: Qi et al. (2401.10241), section 2.1 (ZB-H1).
    """
    behind = 0
    for slot in _one_forward_one_backward(stage, stages, micro_batches):
        if slot.work == FORWARD:
            yield slot
            continue
        yield Slot(INPUT, 0, slot.micro_batch)
        if slot.micro_batch >= stage:
            yield Slot(WEIGHT, 0, behind)
            behind += 1
    yield from (Slot(WEIGHT, 0, m) for m in range(behind, micro_batches))


def _zero_bubble_1p(stage: int, stages: int, micro_batches: int) -> Iterator[Slot]:
    yield from _zero_bubble(stage, stages, micro_batches, stages)


def _zero_bubble_2p(stage: int, stages: int, micro_batches: int) -> Iterator[Slot]:
    yield from _zero_bubble(stage, stages, micro_batches, 2 * stages)


def _zero_bubble(stage: int, stages: int, micro_batches: int, limit: int) -> Iterator[Slot]:
    """Forwards as far as `limit` micro-batches in flight, then input gradients and forwards in
    turns, and weight gradients where nothing else can run or the limit is reached.

    Source: Qi et al. (2401.10241), section 3.1, the heuristic behind ZB-1p and ZB-2p, for passes
    that all take equally long and messages that take no time.
    """
    return iter(played(stages, micro_batches, limit)[stage])


_SCHEDULES: dict[str, Callable[[int, int, int], Iterable[Slot]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "zb-h1": _zero_bubble_h1,
    "zb-1p": _zero_bubble_1p,
    "zb-2p": _zero_bubble_2p,
    "zb-v": zero_bubble_v,
    "dualpipe-v": dual_pipe_v,
    "dualpipe": dual_pipe,
}
