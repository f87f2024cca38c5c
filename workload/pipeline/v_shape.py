"""Schedules of two chunks a stage in the shape of a V: stage s holds chunks s and 2 stages - 1 - s.

So the model begins and ends on the first stage, and turns on the last one, where what a chunk hands
to the next needs no message. Every backward pass is split; a whole one is its two halves, one right
after the other.

DualPipe is two such schedules of half as many stages each, end to end: stage s holds part s of one
copy of the model and part stages - 1 - s of another, whose micro-batches enter at the last stage.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace

from workload.pipeline.slot import FORWARD, INPUT, WEIGHT, Slot

FIRST, SECOND = 0, 1  # a stage's chunks


class _Order:
    """Slots of a stage as they come: each work has the next micro-batch of its chunk."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self._next: Counter[tuple[str, int]] = Counter()
        self._waiting: deque[Slot] = deque()

    def forwards(self, chunk: int) -> int:
        """How many forward passes a chunk has had."""
        return self._next[FORWARD, chunk]

    def forward(self, chunk: int) -> None:
        """A forward pass."""
        self._add(FORWARD, chunk)

    def backward(self, chunk: int) -> None:
        """A backward pass with its gradients of weights."""
        self.input(chunk)
        self.slots.append(self._waiting.pop())

    def input(self, chunk: int) -> None:
        """A backward pass whose gradients of weights wait."""
        self._add(INPUT, chunk)
        self._waiting.append(Slot(WEIGHT, chunk, self.slots[-1].micro_batch))

    def weight(self, chunks: tuple[int, ...] = (FIRST, SECOND)) -> None:
        """The gradients of weights of some chunks that have waited longest, if any wait."""
        for slot in [each for each in self._waiting if each.chunk in chunks][:1]:
            self._waiting.remove(slot)
            self.slots.append(slot)

    def _add(self, work: str, chunk: int) -> None:
        self.slots.append(Slot(work, chunk, self._next[work, chunk]))
        self._next[work, chunk] += 1


def zero_bubble_v(stage: int, stages: int, micro_batches: int) -> Iterator[Slot]:
    """Every stage holds as much as 1F1B's first one, and computes without a pause from its first
    slot to its last if the three works of a chunk take equally long.

    Source: Qi et al. (2401.10241), section 6 (ZB-V), in the order of PyTorch's
    ScheduleZBVZeroBubble; of fewer micro-batches than 2 stages - 1 it leaves out what there is not.
    """
    count = max(micro_batches, 2 * stages - 1)
    order = _warm_zero_bubble_v(stage, stages)
    while order.forwards(SECOND) < count:
        if order.forwards(FIRST) < count:
            order.forward(FIRST)
        order.backward(FIRST)
        order.forward(SECOND)
        order.backward(SECOND)
    for _ in range(stage):
        order.input(FIRST)
        order.input(SECOND)
    for _ in range(stages - stage):
        order.input(FIRST)
        order.weight((FIRST,))
    for chunk in (SECOND, FIRST):
        for _ in range(stages):
            order.weight((chunk,))
    return (slot for slot in order.slots if slot.micro_batch < micro_batches)


def _warm_zero_bubble_v(stage: int, stages: int) -> _Order:
    """As far as the first micro-batch is on its way back through the stage's first chunk."""
    order = _Order()
    for _ in range(2 * (stages - stage) - 1):
        order.forward(FIRST)
    for _ in range(stage):
        order.forward(SECOND)
        order.forward(FIRST)
    for _ in range(stages - stage):
        order.forward(SECOND)
        order.backward(SECOND)
    return order


def dual_pipe_v(stage: int, stages: int, micro_batches: int) -> Iterator[Slot]:
    """DualPipe cut in half: the second half of its devices folded onto the first, so that no
    parameters are held twice. In its steady state a forward pass through one chunk and a backward
    pass through the other take turns.

    Source: deepseek-ai/DualPipe, dualpipe/dualpipev.py (its steps 1 to 8); DeepSeek-V3
    (2412.19437), section 3.2.1. Which passes can run in turns says `pairs.py`.
    """
    order, after = _Order(), stages - stage - 1
    for _ in range(2 * after):
        order.forward(FIRST)
    for _ in range(stage + 1):
        order.forward(FIRST)
        order.forward(SECOND)
    for _ in range(after):
        order.input(SECOND)
        order.weight()
        order.forward(SECOND)
    for _ in range(micro_batches - 2 * stages + stage + 1):
        order.forward(FIRST)
        order.backward(SECOND)
        order.forward(SECOND)
        order.backward(FIRST)
    for _ in range(after):
        order.backward(SECOND)
        order.forward(SECOND)
        order.backward(FIRST)
    _cool_dual_pipe_v(order, stage, after)
    return iter(order.slots)


def dual_pipe(stage: int, stages: int, micro_batches: int) -> Iterator[Slot]:
    """DualPipe, with so many micro-batches in each direction. A stage and the opposite one run the
    same passes, each those of the direction that enters in its half of the stages first; how many
    says how far they are from the nearer end. That is what DualPipeV has on half as many stages.

    Source: deepseek-ai/DualPipe, dualpipe/dualpipe.py (step, its parts 1 to 8, where `phase` is
    turned round in the second half); DeepSeek-V3 (2412.19437), section 3.2.1, figure 5.
    """
    near = min(stage, stages - 1 - stage)
    order = dual_pipe_v(near, stages // 2, micro_batches)
    if stage == near:
        return order
    return (replace(slot, chunk=SECOND - slot.chunk) for slot in order)


def _cool_dual_pipe_v(order: _Order, stage: int, after: int) -> None:
    """The last backward passes, the second half of which leave their weights for later."""
    passes = [chunk for _ in range(stage + 1) for chunk in (SECOND, FIRST)]
    for number, chunk in enumerate(passes):
        if number < stage + 1:
            order.backward(chunk)
        else:
            order.input(chunk)
    for _ in range(after):
        order.weight()
        order.input(FIRST)
    for _ in range(stage + 1):
        order.weight()
