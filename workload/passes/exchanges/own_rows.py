"""Ranks of tensor parallelism that each send their own rows to experts, and gather what came.

Where ranks of x have other rows of a sequence and parts of the same experts, the program gathers
the tokens over x, and each of these ranks sends all rows of the whole; behind experts it sums for
each token over x. A stack whose ranks send their own rows first has an all-to-all of one rank's
rows, behind which the rows of all are gathered over x, and sums over x are of rows, before these go
back: of a token not one, but one for each of its experts. So gathers and exchanges trade places,
and bytes: an exchange has its own part of them, a gather as many as the exchange had.
Source: NVIDIA/Megatron-LM core_v0.12.0, transformer/moe/token_dispatcher.py,
MoEAlltoAllTokenDispatcher: an all-to-all of expert parallelism, an all-gather of expert tensor
parallelism behind it, and a reduce-scatter in front of the one back.

Not modelled: that ops trade places in memory too, that rows are then sorted by parts as well, and
fewer places than tokens, whose gathers would be smaller than those of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from workload.op import EXPERT_COMBINE, EXPERT_DISPATCH, Buffer, Identity, Op

GATHER, COUNTS = "experts.rows.gather", "dispatch.counts.exchange"
# What is gathered or summed over x, by its label, and the exchange that it trades places with.
PLACES: Mapping[str, str] = {
    GATHER: "dispatch.exchange",
    "experts.reduce": "combine.exchange",
    "combine.grad.rows.gather": "combine.grad.exchange",
    "experts.grad.reduce": "dispatch.grad.exchange",
}


def of_own_rows(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> list[Op]:
    """The ops with the bytes of exchanges and of gathers over x that trade places; all as they are
    where no rows are gathered for experts."""
    gathers = [op for op in ops if op.label == GATHER]
    if not gathers:
        return list(ops)
    whole, own = (buffers[name].elements for name in (gathers[0].writes[0], gathers[0].reads[0]))
    sent = {op.identity: op.nbytes for op in ops if _exchanges_rows(op)}

    def traded(op: Op) -> Op:
        if _exchanges_rows(op):
            return replace(op, nbytes=op.nbytes * own // whole)
        other = sent.get(_other(op)) if op.label in PLACES else None
        return op if other is None else replace(op, nbytes=max(op.nbytes, other))

    return [traded(op) for op in ops]


def _exchanges_rows(op: Op) -> bool:
    of_rows = op.purpose in (EXPERT_DISPATCH, EXPERT_COMBINE) and op.label != COUNTS
    return of_rows and op.kind == "all_to_all"


def _other(op: Op) -> Identity:
    """The exchange of the same pass that an op trades places with."""
    return *op.identity[:-1], PLACES[op.label]
