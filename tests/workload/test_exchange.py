"""The table of exchanges: what a plan's rows do on a stack, and to how many parts they go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workload.exchange.table import (
    ALL_TO_ALL,
    DISPATCHERS,
    EXCHANGES,
    OF_STACKS,
    Exchange,
    exchange_of,
)
from workload.plan_fields import PlanFields

SPLIT = PlanFields(dp=8, ep=8, batch=8, mbs=1)
SENDING = [name for name in DISPATCHERS if name != "usual"]


@pytest.mark.parametrize("usual", OF_STACKS.values(), ids=OF_STACKS)
@pytest.mark.parametrize("dispatcher", SENDING)
def test_a_dispatcher_is_that_of_the_plan_on_any_stack(dispatcher: str, usual: Exchange) -> None:
    found = exchange_of(SPLIT.changed(dispatcher=dispatcher), usual)
    assert replace(found, sender=DISPATCHERS[dispatcher].sender) == DISPATCHERS[dispatcher]


def test_the_usual_dispatcher_is_the_stacks() -> None:
    assert [exchange_of(SPLIT, each) for each in OF_STACKS.values()] == [*OF_STACKS.values()]


def test_ranks_of_a_stack_send_their_own_rows_unless_a_row_goes_once() -> None:
    own = OF_STACKS["own"]
    found = {name: exchange_of(SPLIT.changed(dispatcher=name), own) for name in DISPATCHERS}
    once = {"once_per_node", "once_per_rank"}
    assert {name for name, each in found.items() if not each.own_rows} == once


def test_where_every_rank_has_all_experts_nothing_is_sent_once() -> None:
    assert exchange_of(PlanFields(dp=8, batch=8, mbs=1), OF_STACKS["once"]) == ALL_TO_ALL


def test_a_row_goes_once_to_each_node_or_within_one_to_each_rank() -> None:
    copies = DISPATCHERS["once_per_node"].copies
    assert [copies.parts(16, nodes) for nodes in (1, 2, 4)] == [16, 2, 4]
    copies = DISPATCHERS["once_per_rank"].copies
    assert [copies.parts(16, nodes) for nodes in (1, 2, 4)] == [16, 16, 16]


def test_names_of_exchanges_are_unique_in_each_place() -> None:
    for names in (
        [each.name for each in EXCHANGES],
        [each.in_stacks for each in EXCHANGES if each.in_stacks],
        [name for each in EXCHANGES for name in each.megatron],
    ):
        assert len(set(names)) == len(names)
