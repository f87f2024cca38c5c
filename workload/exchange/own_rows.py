"""Ranks of tensor parallelism that each send only their own rows to experts.

The case: ranks of x hold different rows of a sequence (sequence parallelism) and shards of the same
experts.

- The program all-gathers tokens over x; then each rank of x sends all rows by all-to-all; after the
  experts it sums over x per token.
- This pass: each rank sends its own rows by all-to-all; then rows are all-gathered over x. On the
  way back rows are summed over x before the all-to-all, one row per expert of a token. Gathers and
  exchanges trade places and bytes: an exchange has 1/x of its bytes, a gather as many as the
  exchange had.
- With the all-gather dispatcher one collective covers all ranks that hold experts, those of x
  included. It is modelled as a gather among ranks with the same place in x, then one over x (the
  program has the other order); sums alike. Each token thus enters a node once, not once per rank of
  x.

Source: NVIDIA/Megatron-LM core_v0.12.0, transformer/moe/token_dispatcher.py,
MoEAlltoAllTokenDispatcher: an all-to-all of expert parallelism, an all-gather of expert tensor
parallelism behind it, and a reduce-scatter in front of the one back; MoEAllGatherTokenDispatcher,
whose collectives are those of tp_ep_group.

Not modelled: that ops trade places in memory too, that rows are then sorted by parts as well, and
fewer places than tokens, whose gathers would be smaller than those of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from workload.op import EXPERT_COMBINE, EXPERT_DISPATCH, Buffer, Identity, Op, altered

GATHER, COUNTS = "experts.rows.gather", "dispatch.counts.exchange"
# What is gathered or summed over x, by its label, and the exchanges or, of gathered tokens, the
# collectives of experts' ranks that it trades places with.
TRADES: Mapping[str, tuple[str, ...]] = {
    GATHER: ("dispatch.exchange", "dispatch.tokens.gather"),
    "experts.scores.gather": ("dispatch.scores.gather",),
    "experts.chosen.gather": ("dispatch.chosen.gather",),
    "experts.reduce": ("combine.exchange", "combine.scatter"),
    "combine.grad.rows.gather": ("combine.grad.exchange", "combine.grad.tokens.gather"),
    "experts.grad.reduce": ("dispatch.grad.exchange", "dispatch.grad.scatter"),
    "dispatch.scores.grad.reduce": ("dispatch.scores.grad.scatter",),
}
COLLECTIVES = frozenset(chain.from_iterable(TRADES.values()))


def of_own_rows(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> list[Op]:
    """The ops with the bytes of exchanges and of gathers over x that trade places; all as they are
    where no rows are gathered for experts."""
    gathers = [op for op in ops if op.label == GATHER]
    if not gathers:
        return list(ops)
    whole, own = (buffers[name].elements for name in (gathers[0].writes[0], gathers[0].reads[0]))
    sent = {op.identity: op.nbytes for op in ops if _is_of_experts(op)}

    def traded(op: Op) -> Op:
        if _is_of_experts(op):
            return altered(op, nbytes=op.nbytes * own // whole)
        others = [sent[each] for each in _others(op) if each in sent]
        return altered(op, nbytes=max(op.nbytes, *others)) if others else op

    return [traded(op) for op in ops]


def sends_rows(op: Op) -> bool:
    """Whether it is an all-to-all of rows, or of their scores."""
    of_rows = op.purpose in (EXPERT_DISPATCH, EXPERT_COMBINE) and op.label != COUNTS
    return of_rows and op.kind == "all_to_all"


def _is_of_experts(op: Op) -> bool:
    return op.label in COLLECTIVES or sends_rows(op)


def _others(op: Op) -> list[Identity]:
    """The collectives of the same pass that an op may trade places with."""
    return [(*op.identity[:-1], label) for label in TRADES.get(op.label, ())]
