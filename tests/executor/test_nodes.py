"""Exchanges by way of nodes: what goes where, counted by hand, and refused where it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from executor.exchanges import once
from executor.exchanges.nodes import Nodes, local_world_size
from executor.exchanges.two_steps import exchange_in_steps
from executor.groups import ProcessGroups
from tests.executor.ranks import on_ranks
from tests.messages import assert_names, names
from tests.simulator.worlds import TINY, plan_of
from workload.errors import PlanCannotRunError
from workload.op import STEP, STEPS, Op
from workload.program import Program

IN_STEPS = Op("op", "all_to_all", ("a",), ("b",), STEP, attributes={STEPS: 2}, label="exchange")


def in_steps(rank: int) -> list[list[float]]:
    """Rank r sends r + s + 1 rows of 10 r + s to rank s."""
    group = dist.new_group(range(4))
    sent, source = [rank + to + 1 for to in range(4)], [10.0 * rank + to for to in range(4)]
    rows = torch.tensor(source).repeat_interleave(torch.tensor(sent))[:, None]
    target = torch.empty(sum(sent), 1)
    exchange_in_steps(rows, target, (sent, sent), group, 2).wait()
    even, found = torch.tensor(source), torch.empty(4)
    exchange_in_steps(even, found, None, group, 2).wait()
    return [target[:, 0].tolist(), found.tolist()]


def hops(rank: int) -> list[list[int]]:
    """Four ranks of one expert each, two a node; rank 0 has two tokens, of which the first goes to
    ranks 2 and 3 and the second to ranks 1 and 2. How many rows it sends to each, by hop."""
    group = dist.new_group(range(4))
    order = torch.tensor([2, 0, 3, 1] if rank == 0 else [], dtype=torch.int64)
    sent = torch.tensor([0, 1, 2, 1] if rank == 0 else [0] * 4)
    at = Nodes.of(group, 2)
    across, inside, index, entries = once._hops(order, 2, sent, group, at)
    return [across.sent, inside.sent, index.tolist(), *entries.tolist()]


def refused(rank: int) -> list[str | None]:
    """Why each rank refuses a group of three ranks on one node and one on the next; rank 1 has no
    exchange, as a stage without experts has none."""
    exchange = replace(IN_STEPS, axes=("dp",)) if rank != 1 else None
    program = Program(TINY, plan_of("dp=4"), (exchange,) if exchange else (), {}, {})
    groups = ProcessGroups(rank, 60.0, ranks_of_node=3)
    every: list[str | None] = [None] * 4
    try:
        groups.prepare(program)
        why = ""
    except PlanCannotRunError as error:
        why = str(error)
    dist.all_gather_object(every, why)
    return every


@pytest.mark.distributed
def test_two_steps_bring_what_one_brings() -> None:
    ragged, even = on_ranks(4, in_steps)
    assert ragged == [0.0, *[10.0] * 2, *[20.0] * 3, *[30.0] * 4]
    assert even == [0.0, 10.0, 20.0, 30.0]


@pytest.mark.distributed
def test_a_token_goes_once_to_a_node_however_many_experts_it_has_there() -> None:
    """Two tokens cross to the other node for three rows; one goes to a rank of this node."""
    across, inside, *rest = on_ranks(4, hops)
    assert across == [1, 0, 2, 0]
    assert inside == [0, 1, 0, 0]
    assert rest == [[]]


def test_a_group_with_more_ranks_on_one_node_is_refused() -> None:
    assert [local_world_size(group, 2, IN_STEPS) for group in ((0, 1, 2, 3), (0, 2), (2, 3))] == [
        2,
        1,
        2,
    ]
    with pytest.raises(PlanCannotRunError, check=names("3 ranks", "1", "3")):
        local_world_size((0, 1, 2, 3), 3, IN_STEPS)


@pytest.mark.distributed
def test_all_ranks_refuse_what_one_group_cannot_do() -> None:
    """Also the rank that has no such exchange: else it would wait for the others."""
    one, *others = on_ranks(4, refused)
    assert_names(one, "3 ranks", "1", "3")
    assert others == [one] * 3
