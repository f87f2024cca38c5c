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

from topologies.records import record
from workload.op import (
    BACKWARD,
    EXPERT_COMBINE,
    EXPERT_DISPATCH,
    ITEM_BYTES,
    PLACES,
    TRANSPORT,
    Buffer,
    Op,
    altered,
)
from workload.passes.exchanges.own_rows import COUNTS
from workload.sizes.rounding import scaled
from workload.transport import ALL_TO_ALL, Transport

WITHIN = ("take_rows", "sum_rows", "take_scores", "put_scores")  # these kernels
SORTS = ("sort_rows", "unsort_rows")
PROBABILITY_BYTES = 4


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


def by_exchange_kernels(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], own: ExchangeKernels
) -> list[Op]:
    """The ops around experts as such kernels leave them."""

    def changed(op: Op) -> Op:
        if op.kind in WITHIN:
            return altered(op, nbytes=0)
        if op.kind in SORTS:
            return _sorted(op, buffers, own.share)
        return _sent(op, buffers, own) if _is_sent(op) else op

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


def _is_sent(op: Op) -> bool:
    of_rows = op.purpose in (EXPERT_DISPATCH, EXPERT_COMBINE) and op.label != COUNTS
    return of_rows and op.kind == "all_to_all"


def _sent(op: Op, buffers: Mapping[str, Buffer], own: ExchangeKernels) -> Op:
    there = (op.purpose == EXPERT_DISPATCH) != (op.block.phase == BACKWARD)
    transport = own.there if there else own.back
    nbytes = op.nbytes
    if len(buffers[op.reads[0]].shape) == 1:
        transport = transport._replace(payload_bytes_per_s=math.inf)
        nbytes *= max(own.probabilities * PROBABILITY_BYTES // ITEM_BYTES[op.dtype], 1)
    return altered(op, nbytes=nbytes, attributes={**op.attributes, TRANSPORT: transport})
