"""Kernels that send experts' rows themselves: DeepEP's and HybridEP's.

They read a token's row where it lies and write it once to each rank, or node, with experts of it,
where one kernel copies it for each of these; back, one kernel adds up the copies of a rank, and
theirs sums those of all ranks. So nothing is copied before rows are sent, nor behind their sum, and
what a rank's permutation reads, or writes, is one row for all of a token's experts there. The
probabilities that come along are those of all experts for each row.

Source: deepseek-ai/DeepEP@34152ae, csrc/hybrid_ep (executor.cu, dispatch_with_permute and
combine_with_unpermute; extension/permute.cu), and NVIDIA/Megatron-LM core_v0.16.0,
megatron/core/transformer/moe/fused_a2a.py.

Not modelled: the map of all tokens' experts that ranks gather first, and the kernels that make
places of it; copies where a rank has one expert; what their multiprocessors are not there for.
Nothing is said of hosts: each op is issued as before, in place of what these kernels are issued by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import product

from topologies.records import record
from workload.exchange.own_rows import sends_rows
from workload.gpt import GPT
from workload.models import moe
from workload.op import (
    BACKWARD,
    EXPERT_DISPATCH,
    ITEM_BYTES,
    PLACES,
    TRANSPORT,
    Buffer,
    Op,
    altered,
)
from workload.sizes.rounding import scaled
from workload.transport import ALL_TO_ALL, Transport

WITHIN = ("take_rows", "sum_rows", "take_scores", "put_scores")  # these kernels
SORTS = ("sort_rows", "unsort_rows")
PROBABILITY_BYTES, ROW_ITEM_BYTES = 4, 2
BySize = Mapping[int, float]


@record
class KernelRates:
    """What a stack's kernels reach: shares of the links in a node by the ranks of a group there
    (`there` and `back`), and of the NICs by its nodes (`there_across`, `back_across`); for other
    numbers that of the next lower one.

    `back_row_s` is the least time for each row that a rank of one node sums: so many are on their
    way at once, however few bytes each has. With `all_probabilities` a row brings those of all
    experts.
    """

    there: BySize = field(default_factory=dict)
    back: BySize = field(default_factory=dict)
    there_across: BySize = field(default_factory=dict)
    back_across: BySize = field(default_factory=dict)
    back_row_s: float = 0.0
    all_probabilities: bool = False

    def best(self) -> list[Transport]:
        """How rows travel by them at best, there or back, in a group of any size: where they have a
        share for one way alone, the other goes by the library, which may be faster."""
        shares = product(
            _at_most([self.there, self.back]), _at_most([self.there_across, self.back_across])
        )
        return [ALL_TO_ALL._replace(within=inside, across=across) for inside, across in shares]


@record
class ExchangeKernels:
    """How rows travel by such kernels, and which `share` of a row for each expert they send.

    `probabilities` is of how many experts each row that is sent brings the probability; 0: of its
    own alone.
    """

    share: float
    there: Transport = ALL_TO_ALL
    back: Transport = ALL_TO_ALL
    probabilities: int = 0


def exchange_kernels(
    gpt: GPT, within: int, nodes: int, rates: KernelRates, share: float
) -> ExchangeKernels:
    """The kernels that send a share of rows at such rates, in a group that has so many ranks
    `within` each of so many nodes."""
    most = math.inf
    if rates.back_row_s and nodes == 1:
        most = ROW_ITEM_BYTES * moe.routed_width(gpt) / rates.back_row_s
    across = (rates.there_across, rates.back_across) if nodes > 1 else ({}, {})
    there, back = (
        ALL_TO_ALL._replace(within=_of_size(inside, within), across=_of_size(between, nodes))
        for inside, between in zip((rates.there, rates.back), across, strict=True)
    )
    return ExchangeKernels(
        share,
        there,
        back._replace(payload_bytes_per_s=most),
        probabilities=gpt.moe.experts // nodes if rates.all_probabilities else 0,
    )


def _at_most(tables: Sequence[BySize]) -> list[float | None]:
    """The largest share of some tables, and None where one of them has none."""
    known = [share for table in tables for share in table.values()]
    return [*([max(known)] if known else []), *([] if all(tables) else [None])]


def _of_size(table: BySize, size: int) -> float | None:
    """The entry of the largest number that is no larger, or of the smallest."""
    if not table:
        return None
    known = sorted(table.items())
    return next((share for number, share in reversed(known) if number <= size), known[0][1])


def by_exchange_kernels(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], own: ExchangeKernels
) -> list[Op]:
    """The ops around experts as such kernels leave them."""

    def changed(op: Op) -> Op:
        if op.kind in WITHIN:
            return altered(op, nbytes=0)
        if op.kind in SORTS:
            return _sorted(op, buffers, own.share)
        return _sent(op, buffers, own) if sends_rows(op) else op

    return [changed(op) for op in ops]


def _sorted(op: Op, buffers: Mapping[str, Buffer], share: float) -> Op:
    """One row for all of a token's experts on one side, and one for each on the other; scores go
    with them. A kernel looks at all experts of the rank for each of the former."""
    shape = buffers[op.writes[0]].shape
    if len(shape) == 1:
        return altered(op, nbytes=0)
    places = scaled(shape[0], share) * int(op.attributes["local"])
    nbytes = scaled(op.nbytes, round((1 + share) / 2, 6))
    return altered(op, nbytes=nbytes, attributes={**op.attributes, PLACES: places})


def _sent(op: Op, buffers: Mapping[str, Buffer], own: ExchangeKernels) -> Op:
    there = (op.purpose == EXPERT_DISPATCH) != (op.block.phase == BACKWARD)
    transport = own.there if there else own.back
    nbytes = op.nbytes
    if len(buffers[op.reads[0]].shape) == 1:
        transport = transport._replace(payload_bytes_per_s=math.inf)
        nbytes *= max(own.probabilities * PROBABILITY_BYTES // ITEM_BYTES[op.dtype], 1)
    return altered(op, nbytes=nbytes, attributes={**op.attributes, TRANSPORT: transport})
