"""What a dispatcher of experts sends: a row for each expert, or once what several of them get; and
what kernels reach that send it themselves.

Letters: E experts, k of them for each token, over P parts of a group of ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from topologies.files.units import quantity
from topologies.machine import Machine
from topologies.session import session_cached
from workload.exchange.table import ALL_GATHER, USUAL
from workload.exchange.table import ONCE as ONCE_PER_NODE
from workload.gpt import GPT
from workload.models import moe
from workload.op import ITEM_BYTES
from workload.passes.exchanges.kernels import ExchangeKernels
from workload.passes.exchanges.own_rows import PLACES
from workload.plan import Plan
from workload.transport import ALL_TO_ALL, Transport

EACH, ONCE, OWN = EXCHANGES = "each", "once", "own"
ROW_ITEM_BYTES = 2


def sends_once(plan: Plan, exchange: str) -> bool:
    """Whether a token goes once to each node, on a stack whose own exchange is this."""
    usual = exchange == ONCE and plan.dispatcher == USUAL
    return plan.ep > 1 and (usual or plan.dispatcher == ONCE_PER_NODE)


def sends_own_rows(plan: Plan, exchange: str) -> bool:
    """Whether ranks of x that have parts of the same experts send their own rows to these
    (`workload/passes/exchanges/own_rows.py`), on a stack whose own exchange is this."""
    return exchange == OWN and not sends_once(plan, exchange)


def gathered_payloads(gpt: GPT, plan: Plan) -> dict[str, float]:
    """By label, bytes that Megatron-Core's all-gather dispatcher sends per byte of the program's
    collective (whose scores are in fp32).

    Scores (4 bytes) and choices (one byte) are gathered for all experts of a token, not only for
    the chosen ones (`scores_of_all`). Outputs of experts are summed over ranks, and their gradients
    gathered, in the dtype of the scores. Source: NVIDIA/Megatron-LM, core_v0.12.0 to core_v0.16.0,
    megatron/core/transformer/moe/token_dispatcher.py, MoEAllGatherTokenDispatcher, which casts to
    the dtype of its local_probs. Not modelled: scores in the dtype of training, which is
    Megatron-Core's default; recipes and its guide to experts set --moe-router-dtype fp32.
    """
    if plan.dispatcher != ALL_GATHER or plan.ep == 1:
        return {}
    every = gpt.experts / gpt.topk
    wide = ITEM_BYTES["fp32"] / ITEM_BYTES[plan.precision]
    shares = {
        "dispatch.scores.gather": every,
        "dispatch.scores.grad.scatter": every,
        "dispatch.chosen.gather": every / ITEM_BYTES["int64"],
        "combine.scatter": wide,
        "combine.grad.tokens.gather": wide,
    }
    over_x = {label: each for each, labels in PLACES.items() for label in labels}
    return shares | {over_x[label]: share for label, share in shares.items()}


def gathered_copies(plan: Plan) -> dict[str, tuple[int, int]]:
    """By label, bytes read and written per element by the casts around these sums."""
    if plan.dispatcher != ALL_GATHER or plan.ep == 1 or plan.precision == "fp32":
        return {}
    cast = ITEM_BYTES[plan.precision] + ITEM_BYTES["fp32"]
    own_and_all = {"combine.grad.tokens.gather": (cast, cast)}
    return {"combine.sum_rows": (0, cast), "combine.scatter": (0, cast)} | own_and_all


def share_sent_once(gpt: GPT, plan: Plan, machine: Machine, *, in_a_row: bool = False) -> float:
    """Rows sent, as a share of one row per expert, if a token is sent once to each node (or, in a
    group within a node, once to each rank) and copied there.

    Each of P parts (nodes or ranks) holds E/P experts. If all choices are equally likely, it holds
    none of a token's k experts with probability p = C(E - E/P, k) / C(E, k), so P (1 - p) copies
    are sent instead of k. If a token may choose only from some of G groups, E counts the experts of
    those groups, and so does the part. Source: DeepSeek-V3 (2412.19437), section 3.2.2, and
    github.com/deepseek-ai/DeepEP: through the network once to a node, then over NVLink; groups:
    section 2.1.2 there, and DeepSeek-V2 (2405.04434), section 2.2.2. If tokens take experts
    `in_a_row` (k adjacent ones, the next token the following k), most experts of a token are in one
    part. Not modelled: the copies over links within a node, which are hidden behind the network.

    >>> from topologies.machine_files import load_machine
    >>> from workload.gpt import find_model
    >>> gpt = find_model("mixtral-8x7b")
    >>> plan = Plan(dp=16, ep=8, batch=16, mbs=1)
    >>> round(share_sent_once(gpt, plan, load_machine("dgx-h100")), 3)
    1.0
    """
    if plan.ep == 1 or not gpt.experts:
        return 1.0
    return _share(gpt, _spread(plan, machine), in_a_row)


def _share(gpt: GPT, spread: tuple[int, int], in_a_row: bool = False) -> float:
    within, nodes = spread
    parts = within if nodes == 1 else nodes
    if in_a_row:
        starts = range(0, math.lcm(gpt.experts, gpt.topk), gpt.topk)
        rows = ([(start + at) % gpt.experts for at in range(gpt.topk)] for start in starts)
        found = [len({each * parts // gpt.experts for each in row}) for row in rows]
        return round(sum(found) / len(found) / gpt.topk, 6)
    reached = sum(1 - _has_none(gpt, part, parts) for part in range(parts))
    return round(min(reached / gpt.topk, 1.0), 6)


def _has_none(gpt: GPT, part: int, parts: int) -> float:
    """How likely it is that a part has no expert of a token, whose groups are equally likely."""
    groups = gpt.router_groups or 1
    chosen = gpt.router_topk_groups or 1
    size = gpt.experts // groups
    begin, end = (at * gpt.experts // parts for at in (part, part + 1))
    shares = Counter(
        min(end, (group + 1) * size) - max(begin, group * size)
        for group in range(begin // size, -(-end // size))
    )
    # In how many ways so many of its groups are chosen, with so many of its experts.
    ways: Counter[tuple[int, int]] = Counter({(0, 0): 1})
    for share, count in shares.items():
        before, ways = ways, Counter()
        for ((number, experts), way), more in product(before.items(), range(count + 1)):
            ways[number + more, experts + more * share] += way * math.comb(count, more)
    others = groups - shares.total()
    return sum(
        way
        * math.comb(others, chosen - number)
        * math.comb(chosen * size - experts, gpt.topk)
        / (math.comb(groups, chosen) * math.comb(chosen * size, gpt.topk))
        for (number, experts), way in ways.items()
        if number <= chosen
    )


def exchange_kernels(
    gpt: GPT, plan: Plan, machine: Machine, of_gpu: Mapping[str, Any], share: float
) -> ExchangeKernels:
    """The kernels that send a share of a plan's rows, by what a stack has of them for the
    machine's GPUs.

    `there` and `back` are shares of the links in a node by the ranks of a group there,
    `there_across` and `back_across` of the NICs by its nodes; of other numbers it is that of the
    next lower one. `back_row` is the least time for each row that a rank of one node sums: so many
    are on their way at once, however few bytes each has.
    """
    within, nodes = _spread(plan, machine)
    row_bytes = ROW_ITEM_BYTES * moe.routed_width(gpt)
    longest_s = quantity(of_gpu["back_row"], "s") if "back_row" in of_gpu and nodes == 1 else 0.0
    return ExchangeKernels(
        share,
        there=_transport(of_gpu, "there", within, nodes),
        back=_transport(of_gpu, "back", within, nodes)._replace(
            payload_bytes_per_s=row_bytes / longest_s if longest_s else math.inf
        ),
        probabilities=gpt.experts // nodes if of_gpu.get("all_probabilities") else 0,
    )


def most_reached(of_gpu: Mapping[str, Any]) -> list[Transport]:
    """What such kernels reach at most, there or back, in a group of any size: where they have a
    share for one way alone, the other goes by the library, which may be faster."""
    within, across = (
        _at_most([of_gpu.get(key, {}) for key in keys])
        for keys in (("there", "back"), ("there_across", "back_across"))
    )
    shares = product(within, across)
    return [ALL_TO_ALL._replace(within=inside, across=between) for inside, between in shares]


def _at_most(tables: Sequence[Mapping[str, float]]) -> list[float | None]:
    """The largest share of some tables, and None where one of them has none."""
    known = [share for table in tables for share in table.values()]
    return [*([max(known)] if known else []), *([] if all(tables) else [None])]


def _transport(of_gpu: Mapping[str, Any], way: str, within: int, nodes: int) -> Transport:
    across = _of_size(of_gpu.get(f"{way}_across", {}), nodes) if nodes > 1 else None
    return ALL_TO_ALL._replace(within=_of_size(of_gpu.get(way, {}), within), across=across)


def _of_size(table: Mapping[str, float], size: int) -> float | None:
    """The entry of the largest number that is no larger, or of the smallest."""
    if not table:
        return None
    known = sorted((int(number), share) for number, share in table.items())
    return next((share for number, share in reversed(known) if number <= size), known[0][1])


def _spread(plan: Plan, machine: Machine) -> tuple[int, int]:
    """How many ranks of a group of experts a node has, and over how many nodes they are, where
    neighbouring ranks share nodes."""
    grid, members = plan.grid, np.zeros(1, dtype=np.int64)
    per_node = machine.segments(grid.ranks).per_node
    for axis in grid.dimensions(*plan.expert_axes):
        members = np.add.outer(members, grid.stride(axis) * np.arange(grid.size(axis))).ravel()
    counts = np.unique(members // per_node, return_counts=True)[1]
    return int(counts.max()), len(counts)


def least_share_sent_once(
    gpt: GPT, plan: Plan, machine: Machine, *, in_a_row: bool = False
) -> float:
    """What `share_sent_once` is at least in any order of ranks: on as few nodes as hold the group
    or, unless no other axis, nor ranks with parts of the same experts, can come between its ranks,
    on any number of nodes. More nodes need fewer copies where groups of experts fill them. Of
    experts `in_a_row` one part may have all of a token's."""
    if in_a_row:
        return 1 / gpt.topk
    apart = plan.tp * plan.y * plan.z * plan.cp * plan.pp * plan.expert_parts > 1
    per_node = machine.segments(plan.grid.ranks).per_node
    return _least_share(gpt, plan.ep, per_node, apart)


@session_cached(1024)
def _least_share(gpt: GPT, expert: int, per_node: int, apart: bool) -> float:
    nodes = -(-expert // per_node)
    spreads = [(min(expert, per_node), nodes)]
    if apart:
        most = expert if (gpt.router_groups or 1) > 1 else max(nodes, 2)
        spreads += [(1, count) for count in range(max(nodes, 2), most + 1)]
    return min(_share(gpt, each) for each in spreads)
