"""Rows on their way to the ranks of their experts and back (`experts.py` has the letters)."""

from __future__ import annotations

from typing import Any

from topologies.records import record
from workload.exchange.table import DISPATCHERS, Exchange, Moves
from workload.expert_loads.histogram import most_rows
from workload.lowering.builder import Builder
from workload.lowering.layers.mixers.experts import rows
from workload.models import moe
from workload.op import BACK, EXPERT_DISPATCH, FOR_NODES, THERE, altered

SORTS = ("sort_rows", "unsort_rows")


@record
class Routed:
    """Names of what routing leaves behind: the logits, each token's experts, which row is sent to
    which place (`order`), how many rows this rank has `sent` to each expert, the `counts` that each
    expert of this rank gets from every rank, and the `sums` of a balancing loss, if any."""

    logits: str
    chosen: str
    order: str = ""
    sent: str = ""
    counts: str = ""
    sums: str = ""


def to_ranks(
    b: Builder, label: str, sent: str, routed: Routed, purpose: str = EXPERT_DISPATCH
) -> str:
    """Emit the way of rows, if any, to the ranks of their experts, where they lie by sender."""
    if not sent or not is_apart(b):
        return sent
    return _all_to_all(b, label, sent, purpose, routed, there=True)


def by_expert(b: Builder, label: str, arrived: str, routed: Routed) -> str:
    """Emit the sorting of rows that arrived: by expert, and of each by sender."""
    if not arrived or not is_apart(b) or local_experts(b) == 1:
        return arrived
    reads = [arrived, routed.counts]
    return moved(
        b, f"{label}.sort", "sort_rows", reads, b.buffers[arrived].shape, local=local_experts(b)
    )


def from_experts(b: Builder, label: str, rows_out: str, routed: Routed, purpose: str) -> str:
    """Emit the way back, to the places that rows were sent from."""
    if not rows_out or not is_apart(b):
        return rows_out
    if local_experts(b) > 1:
        shape, reads = b.buffers[rows_out].shape, [rows_out, routed.counts]
        rows_out = moved(b, f"{label}.unsort", "unsort_rows", reads, shape, local=local_experts(b))
    return _all_to_all(b, label, rows_out, purpose, routed, there=False)


def _all_to_all(
    b: Builder, label: str, sent: str, purpose: str, routed: Routed, *, there: bool
) -> str:
    """Emit the exchange of rows with the ranks of their experts, there or back. Where counts differ
    it reads those of what it sends and of what it gets, too; where a token's rows go once to each
    node, the choices besides. Its payload is what the busiest rank gets there, and sends back;
    scores differ from row to row, and go as they are."""
    own, count = b.buffers[sent], b.buffers[routed.order].shape[0]
    counted = routed.counts if there and is_ragged(b) else ""
    if counted:
        count = most_rows(b.gpt, b.block.part.layer, count, b.plan.ep)
    arrived = b.tensor(f"{label}.arrived", (count, *own.shape[1:]), own.dtype, rows_of=counted)
    axes = b.expert_axes
    operands = f"{label}.exchange", "all_to_all", [sent], [arrived]
    how = exchange(b).attributes
    once = exchange(b).once and len(own.shape) > 1
    if once:
        how |= {FOR_NODES: THERE if there else BACK, "even": bool(b.gpt.moe.capacity)}
        how["topk"] = b.gpt.moe.topk
    b.collective(*operands, *axes, purpose=purpose, **how)
    if is_ragged(b) or once:
        counts = (routed.sent, routed.counts)[:: 1 if there else -1]
        order = (routed.order,) if once else ()
        b.ops[-1] = altered(b.ops[-1], reads=(sent, *counts, *order))
    if is_ragged(b):
        payload = b.nbytes(arrived if there else sent)
        b.ops[-1] = altered(b.ops[-1], nbytes=payload)
    return arrived


def moved(
    b: Builder, label: str, kind: str, reads: list[str], shape: tuple[int, ...], **how: Any
) -> str:
    """Emit the copy of rows (or scores) from places to places; returns what has them."""
    source = b.buffers[reads[0]]
    counted = source.rows_of if kind in SORTS else ""
    out = b.tensor(f"{label}.{kind}", shape, source.dtype, rows_of=counted)
    b.op(f"{label}.{kind}", kind, reads, [out], topk=b.gpt.moe.topk, **how)
    return out


def local_experts(b: Builder) -> int:
    """How many experts of a layer a rank holds."""
    return b.gpt.moe.experts // b.plan.ep


def exchange(b: Builder) -> Exchange:
    """How the plan's rows get to their experts."""
    return DISPATCHERS[b.plan.experts.dispatcher]


def is_gathered(b: Builder) -> bool:
    """Whether the plan gathers tokens in place of sending rows."""
    return exchange(b).moves is Moves.GATHERED


def is_apart(b: Builder) -> bool:
    """Whether rows are sent to ranks that hold different experts."""
    return b.plan.ep > 1 and not is_gathered(b)


def is_ragged(b: Builder) -> bool:
    """Whether ranks get as many rows from each other as the routing says."""
    return is_apart(b) and not b.gpt.moe.capacity


def width(b: Builder) -> int:
    """The columns that a rank has of the rows that experts work on."""
    return moe.routed_width(b.gpt) // b.grid.parts_of("width")


def routed_tokens(b: Builder, normed: str) -> int:
    """How many tokens are routed."""
    return b.buffers[normed].shape[0] * b.grid.size(*rows.gathered_over(b))


def slots(b: Builder, source: str) -> int:
    """How many rows are sent."""
    return moe.slots(b.gpt, b.buffers[source].shape[0])
