"""How many copies of a token are sent where it goes once to each rank or node with its experts."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb

import pytest

from simulator.search.bounds.dispatched import least_share_sent_once
from simulator.stacks import load_stack
from topologies.machine_files import load_machine
from workload.exchange.sent_bytes import on_nodes, share_sent_once
from workload.exchange.table import DISPATCHERS
from workload.gpt import GPT, find_model
from workload.plan import Plan
from workload.plan_text import parse_plan

PER_NODE = 8


def share_of(gpt: GPT, plan: Plan, per_node: int, *, in_a_row: bool = False) -> float:
    """What a plan sends of a row for each expert where a token goes once to each node."""
    _, nodes = on_nodes(plan.grid, plan.expert_axes, per_node)
    parts = DISPATCHERS["once_per_node"].copies.parts(plan.ep, nodes)
    return share_sent_once(gpt, parts, in_a_row=in_a_row)


def test_a_token_sent_once_to_each_rank_goes_to_as_many_ranks_as_have_experts_of_it() -> None:
    """By hand: 16 experts on 8 ranks of two nodes, two a rank, of which a token takes 2. One rank
    has both with 1/15, so 2 - 1/15 ranks get a row of the 2 that go one for each expert."""
    gpt = find_model("qwen3-30b-a3b").changed(experts=16, topk=2)
    parts = DISPATCHERS["once_per_rank"].copies.parts(8, 2)
    assert share_sent_once(gpt, parts) == pytest.approx((2 - 1 / 15) / 2, abs=1e-6)


def _world(groups: int, chosen: int, topk: int) -> GPT:
    of_twelve = find_model("mixtral-8x7b").changed(experts=12, topk=topk)
    return of_twelve.changed(router_groups=groups, router_topk_groups=chosen)


def _counted(gpt: GPT, parts: int) -> Fraction:
    """Copies over rows for each expert, in the mean of all choices that a router has."""
    size, of_part = gpt.moe.experts // gpt.moe.router_groups, gpt.moe.experts // parts
    reached = [
        len({expert // of_part for expert in experts})
        for groups in combinations(range(gpt.moe.router_groups), gpt.moe.router_topk_groups)
        for experts in combinations(
            [group * size + at for group in groups for at in range(size)], gpt.moe.topk
        )
    ]
    return Fraction(sum(reached), len(reached) * gpt.moe.topk)


@pytest.mark.parametrize("parts", [2, 3, 4, 6])
@pytest.mark.parametrize(
    ("groups", "chosen", "topk"),
    [(1, 1, 3), (3, 2, 3), (4, 2, 2), (4, 3, 4), (6, 2, 2), (12, 3, 3)],
)
def test_copies_are_those_of_all_choices(groups: int, chosen: int, topk: int, parts: int) -> None:
    gpt = _world(groups, chosen, topk)
    plan = Plan(dp=parts, ep=parts, batch=parts, mbs=1)
    expected = float(_counted(gpt, parts))
    assert share_of(gpt, plan, PER_NODE) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("experts", "topk", "ranks_reached"), [(128, 8, 1), (64, 6, 1.5), (160, 6, 1.2), (8, 2, 2)]
)
def test_experts_next_to_each_other_are_on_few_ranks(
    experts: int, topk: int, ranks_reached: float
) -> None:
    """By hand on 8 ranks: sixteen experts of a rank are two tokens' choices of 8; of 8 on a rank
    every other six reach into the next one's, of 20 two in ten; of one, all do."""
    gpt = find_model("qwen3-30b-a3b").changed(experts=experts, topk=topk)
    plan = Plan(dp=8, ep=8, batch=8, mbs=1)
    share = share_of(gpt, plan, PER_NODE, in_a_row=True)
    assert share * topk == pytest.approx(ranks_reached, abs=1e-5)
    assert least_share_sent_once(gpt, plan, PER_NODE, in_a_row=True) <= share
    assert share_of(gpt, plan, PER_NODE) >= share


def test_primus_forces_a_balance_of_experts_next_to_each_other() -> None:
    gpt, plan = find_model("qwen3-30b-a3b"), Plan(dp=8, ep=8, batch=8, mbs=1)
    own, usual = (
        dict(load_stack(name).kernels(gpt, plan, load_machine("dgx-h100")).behaviour.payloads)[
            "all_to_all"
        ]
        for name in ("primus-deepep", "megatron-core-deepep")
    )
    assert (own, round(usual, 2)) == (1 / 8, 0.67)


def test_a_token_of_deepseek_v3_reaches_four_nodes_at_most() -> None:
    """DeepSeek-V3 (2412.19437), section 2.1.2; a group of experts has a node of its own."""
    gpt, plan = find_model("deepseek-v3"), Plan(dp=64, ep=64, batch=64, mbs=1)
    assert 3.5 < share_of(gpt, plan, PER_NODE) * gpt.moe.topk < 4
    free = gpt.changed(router_groups=0, router_topk_groups=0)
    assert share_of(free, plan, PER_NODE) * gpt.moe.topk > 5


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("ep=8,dp=8", 0),
        ("ep=16,dp=16", 2),
        ("tp=2,z=2,ep=8,dp=8", 4),
        ("tp=2,z=4,ep=8,etp=1,dp=4,sp=true", 4),
        ("pp=8,ep=16,dp=16,order=tp-pp-dp", 16),
        ("pp=2,ep=16,dp=16,order=tp-pp-dp", 4),
        ("tp=4,ep=8,dp=8,order=dp-tp-pp", 0),
        ("ep=8,etp=2,dp=16", 2),
        ("tp=8,ep=2,etp=4,dp=1,sp=true", 0),
    ],
)
def test_the_order_of_ranks_says_how_many_nodes_a_token_may_reach(text: str, nodes: int) -> None:
    """By hand on nodes of 8: ranks that come between those of a group take places in its nodes. A
    group in one node sends to each rank. No order sends less than a search counts on."""
    gpt, plan = (
        find_model("qwen3-30b-a3b").changed(experts=16, topk=2),
        parse_plan(text, batch=512),
    )
    parts = nodes or plan.ep
    reached = parts * (1 - Fraction(comb(16 - 16 // parts, 2), comb(16, 2)))
    share = share_of(gpt, plan, PER_NODE)
    assert share == pytest.approx(float(reached) / 2, abs=1e-6)
    assert least_share_sent_once(gpt, plan, PER_NODE) <= share


@pytest.mark.parametrize("order", ["tp-dp-pp", "dp-tp-pp", "tp-y-pp-z-dp"])
@pytest.mark.parametrize("expert", [2, 3, 4, 6, 8, 12, 16, 24, 48])
@pytest.mark.parametrize("x", [1, 2, 4, 8])
def test_no_order_sends_less_than_a_search_counts_on_where_tokens_keep_to_groups(
    x: int, expert: int, order: str
) -> None:
    """One of three groups for each token: nodes that groups fill send less than fewer nodes."""
    gpt = find_model("qwen3-30b-a3b").changed(
        experts=48, topk=8, router_groups=3, router_topk_groups=1
    )
    plan = parse_plan(f"tp={x},z=2,pp=2,ep={expert},dp=48,order={order}", batch=960)
    assert least_share_sent_once(gpt, plan, PER_NODE) <= share_of(gpt, plan, PER_NODE)
