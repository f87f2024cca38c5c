"""The order in which a rank issues its collectives and messages, and the groups they run in."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence

from topologies.records import record
from workload.grid import Grid
from workload.op import COMPUTE, TURNED, Op
from workload.program import Program

Round = tuple[str, ...]  # what a group is for: its direction, if it carries messages, and its axes
Communicator = tuple[Round, tuple[int, ...]]  # what it is for, and its members


@record
class Call:
    """A collective or message as one rank issues it.

    `agreed` is what the other members must come with. Between the call before and this one the
    compute stream waits for the rank's calls numbered `after`, and with `loads` it launches a
    kernel of a kind that this step has not launched yet. The end of a step is a call without
    members.
    """

    name: str
    agreed: str
    communicator: Communicator
    after: tuple[int, ...] = ()
    loads: bool = False


def round_of(op: Op, grid: Grid) -> Round:
    """What the group of a collective or message is for; no rank is in two groups of one round.

    Messages of either direction have groups of their own, and so have those between the chunks of
    a V's second half, so that none waits for another, and
    links between stages share a round where no stage has two of them.
    """
    if not op.is_message:
        return ("", *op.axes)
    link = op.attributes["link"]
    last_of_odd = grid.pp % 2 and link == grid.pp - 1
    kind = f"{op.direction}.{TURNED}" if op.is_turned else op.direction
    return (kind, "last" if last_of_odd else f"{link % 2}")


def members_of(op: Op, grid: Grid, rank: int) -> tuple[int, ...]:
    """The ranks of the group in which a rank performs a collective or message, in order."""
    rows: list[list[int]] = grid.groups(*op.group).tolist()
    return next(tuple(row) for row in rows if rank in row)


def issue_order(program: Program, *, late: bool) -> Sequence[int]:
    """The indices of a program's ops in the order in which a rank issues them.

    With `late` a receive is issued just before what waits for it. On NCCL a receive that waits for
    its sender runs all the while, and what synchronises the device meanwhile (the first launch of a
    lazily loaded kernel, the allocator giving memory back) waits for the sender too, which may be
    waiting for this rank. A stage that waits for one of its sends still posts the receive that is
    needed next: the other side may be waiting for a send of its own. In a V, where up to four lines
    of messages meet, that is not enough, and receives stay where they are.
    """
    ops = program.ops
    if not late or any(op.is_message and op.is_turned for op in ops):
        return range(len(ops))
    fences = _fences(program)
    held: list[tuple[int, int]] = []
    order: list[int] = []
    for index, op in enumerate(ops):
        if op.kind == "recv":
            insort(held, (fences[index], index))
            continue
        posted = len(order)
        while held and held[0][0] == index:
            order.append(held.pop(0)[1])
        settles = any(ops[awaited].kind == "send" for awaited in program.waits[index])
        if held and settles and posted == len(order):
            order.append(held.pop(0)[1])
        order.append(index)
    assert not held, "every receive is waited for"
    return order


def _fences(program: Program) -> dict[int, int]:
    """For each receive the first op that waits for it."""
    posted: dict[str, deque[int]] = {}
    fences: dict[int, int] = {}
    for index, op in enumerate(program.ops):
        for awaited in program.waits[index]:
            queue = posted.get(program.ops[awaited].stream)
            while queue and queue[0] <= awaited:
                fences[queue.popleft()] = index
        if op.kind == "recv":
            posted.setdefault(op.stream, deque()).append(index)
    return fences


def calls_of(program: Program, rank: int, order: Sequence[int]) -> list[Call]:
    """What a rank issues in a step in which it waits as `executor.play` does; the last entry is the
    step's end, behind everything."""
    grid, ops = program.plan.grid, program.ops
    members: dict[tuple[str, ...], tuple[int, ...]] = {}
    queues: dict[str, deque[tuple[int, int]]] = {}
    calls: list[Call] = []
    launched: set[tuple[str, str]] = set()
    after, kinds = [], 0
    for index in order:
        op = ops[index]
        for awaited in program.waits[index]:
            queue = queues.get(ops[awaited].stream)
            while queue and queue[0][0] <= awaited:
                after.append(queue.popleft()[1])
        if not op.communicates:
            if op.kind != "fence":
                launched.add((op.kind, op.attributes.get("form", "")))
            continue
        if op.group not in members:
            members[op.group] = members_of(op, grid, rank)
        where = (round_of(op, grid), members[op.group])
        calls.append(Call(op.name, _agreed(op), where, tuple(after), len(launched) > kinds))
        after, kinds, number = [], len(launched), len(calls) - 1
        if op.stream == COMPUTE:
            after.append(number)
        else:
            queues.setdefault(op.stream, deque()).append((index, number))
    after += [number for queue in queues.values() for _, number in queue]
    return [*calls, Call("the end of the step", "", ((), ()), tuple(after))]


def _agreed(op: Op) -> str:
    what = f"message {op.attributes['tag']}" if op.is_message else f"{op.kind} {op.name}"
    return f"{what} of {op.nbytes} bytes"
