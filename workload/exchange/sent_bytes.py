"""How many bytes an exchange sends: a row for each expert, or once what several of them get.

Letters: E experts, k of them for each token, over P parts of a group of ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np

from workload.exchange.own_rows import TRADES
from workload.exchange.table import Exchange, Moves
from workload.gpt import GPT
from workload.grid import Grid
from workload.op import ITEM_BYTES


def gathered_payloads(gpt: GPT, precision: str, exchange: Exchange) -> dict[str, float]:
    """By label, bytes that Megatron-Core's all-gather dispatcher sends per byte of the program's
    collective (whose scores are in fp32).

    Scores (4 bytes) and choices (one byte) are gathered for all experts of a token, not only for
    the chosen ones (`scores_of_all`). Outputs of experts are summed over ranks, and their gradients
    gathered, in the dtype of the scores. Source: NVIDIA/Megatron-LM, core_v0.12.0 to core_v0.16.0,
    megatron/core/transformer/moe/token_dispatcher.py, MoEAllGatherTokenDispatcher, which casts to
    the dtype of its local_probs. Not modelled: scores in the dtype of training, which is
    Megatron-Core's default; recipes and its guide to experts set --moe-router-dtype fp32.
    """
    if exchange.moves is not Moves.GATHERED:
        return {}
    every = gpt.moe.experts / gpt.moe.topk
    wide = ITEM_BYTES["fp32"] / ITEM_BYTES[precision]
    shares = {
        "dispatch.scores.gather": every,
        "dispatch.scores.grad.scatter": every,
        "dispatch.chosen.gather": every / ITEM_BYTES["int64"],
        "combine.scatter": wide,
        "combine.grad.tokens.gather": wide,
    }
    over_x = {label: each for each, labels in TRADES.items() for label in labels}
    return shares | {over_x[label]: share for label, share in shares.items()}


def gathered_copies(precision: str, exchange: Exchange) -> dict[str, tuple[int, int]]:
    """By label, bytes read and written per element by the casts around these sums."""
    if exchange.moves is not Moves.GATHERED or precision == "fp32":
        return {}
    cast = ITEM_BYTES[precision] + ITEM_BYTES["fp32"]
    own_and_all = {"combine.grad.tokens.gather": (cast, cast)}
    return {"combine.sum_rows": (0, cast), "combine.scatter": (0, cast)} | own_and_all


def share_sent_once(gpt: GPT, parts: int, *, in_a_row: bool = False) -> float:
    """Rows sent, as a share of one row per expert, if a token is sent once to each part of a group
    of ranks that has experts of it (`Copies.parts`), and copied there.

    Each of P parts (nodes or ranks) holds E/P experts. If all choices are equally likely, it holds
    none of a token's k experts with probability p = C(E - E/P, k) / C(E, k), so P (1 - p) copies
    are sent instead of k. If a token may choose only from some of G groups, E counts the experts of
    those groups, and so does the part. Source: DeepSeek-V3 (2412.19437), section 3.2.2, and
    github.com/deepseek-ai/DeepEP: through the network once to a node, then over NVLink; groups:
    section 2.1.2 there, and DeepSeek-V2 (2405.04434), section 2.2.2. If tokens take experts
    `in_a_row` (k adjacent ones, the next token the following k), most experts of a token are in one
    part. Not modelled: the copies over links within a node, which are hidden behind the network.

    >>> from workload.gpt import find_model
    >>> gpt = find_model("mixtral-8x7b")
    >>> round(share_sent_once(gpt, parts=8), 3), round(share_sent_once(gpt, parts=2), 3)
    (1.0, 0.786)
    """
    if not gpt.moe.experts:
        return 1.0
    if in_a_row:
        starts = range(0, math.lcm(gpt.moe.experts, gpt.moe.topk), gpt.moe.topk)
        rows = ([(start + at) % gpt.moe.experts for at in range(gpt.moe.topk)] for start in starts)
        found = [len({each * parts // gpt.moe.experts for each in row}) for row in rows]
        return round(sum(found) / len(found) / gpt.moe.topk, 6)
    reached = sum(1 - _has_none(gpt, part, parts) for part in range(parts))
    return round(min(reached / gpt.moe.topk, 1.0), 6)


def _has_none(gpt: GPT, part: int, parts: int) -> float:
    """How likely it is that a part has no expert of a token, whose groups are equally likely."""
    groups = gpt.moe.router_groups or 1
    chosen = gpt.moe.router_topk_groups or 1
    size = gpt.moe.experts // groups
    begin, end = (at * gpt.moe.experts // parts for at in (part, part + 1))
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
        * math.comb(chosen * size - experts, gpt.moe.topk)
        / (math.comb(groups, chosen) * math.comb(chosen * size, gpt.moe.topk))
        for (number, experts), way in ways.items()
        if number <= chosen
    )


def on_nodes(grid: Grid, axes: Sequence[str], per_node: int) -> tuple[int, int]:
    """How many ranks of a group over some axes a node has, and over how many nodes they are, where
    neighbouring ranks share nodes."""
    members = np.zeros(1, dtype=np.int64)
    for axis in grid.dimensions(*axes):
        members = np.add.outer(members, grid.stride(axis) * np.arange(grid.size(axis))).ravel()
    counts = np.unique(members // per_node, return_counts=True)[1]
    return int(counts.max()), len(counts)
