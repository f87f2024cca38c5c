"""Plans whose all-to-alls of experts run beside other compute: the overlaps a2a and wgrad."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from workload.op import COMPUTE, Op
from workload.passes.exchanges.other_micro_batch import COUNTS
from workload.passes.exchanges.pairs import IN_V, WHOLE
from workload.passes.exchanges.shared_experts import MOVED
from workload.passes.table import EVERY, OVERLAPS, switch_of

IN_TURNS, PUT_OFF = "a2a", "wgrad"
BLOCKING = "blocking"
EXCHANGES = "exchanges"  # a stream in place of that of the experts' axes


def sets_of(asked: Sequence[str]) -> list[tuple[str, ...]]:
    """None of the overlaps that are asked for, each of them, and both.

    >>> sets_of(["wgrad", "a2a"])
    [(), ('a2a',), ('wgrad',), ('a2a', 'wgrad')]
    """
    alone = [(each,) for each in EVERY if each in asked]
    both = [(IN_TURNS, PUT_OFF)] if len(alone) > 1 else []
    return [(), *alone, *both]


def of_exchanges(overlap: Sequence[str]) -> tuple[str, ...]:
    """Those of some overlaps that no plan has unless they are named."""
    return in_order([each for each in overlap if each not in OVERLAPS])


def can_run(beside: Collection[str], pp: int, schedule: str, vpp: int) -> bool:
    """Whether a schedule can have these overlaps (`exchanges_refusal` of plans)."""
    chunks = schedule == "1f1b" and (pp == 1) == (vpp == 1)
    if IN_TURNS in beside and not (chunks or schedule in IN_V):
        return False
    return PUT_OFF not in beside or schedule in WHOLE


def without_turns(overlap: Sequence[str]) -> tuple[str, ...]:
    """Overlaps under which each slot is as it is alone."""
    return tuple(each for each in overlap if each != IN_TURNS)


def in_order(overlap: Sequence[str]) -> tuple[str, ...]:
    """Overlaps as plans name them."""
    return tuple(each for each in EVERY if each in overlap)


def stream_of(op: Op, beside: Collection[str]) -> tuple[str, str]:
    """The overlap that gave an op a stream of its own, "" if none did and BLOCKING for a collective
    on the compute stream; and that stream: EXCHANGES where, with such overlaps, plans may have it
    beside compute."""
    moved = op.purpose in MOVED and op.dtype != COUNTS
    if moved and beside and (IN_TURNS in beside or op.stream != COMPUTE):
        return "", EXCHANGES
    blocks = op.is_collective and op.stream == COMPUTE
    return BLOCKING if blocks else switch_of(op), op.stream
