"""What passes do to ops: issue a collective later or on a stream of its own, or send more bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from workload.op import COMPUTE, KEYS_EXCHANGE, Op, altered
from workload.sizes.rounding import scaled


def on_own_stream(op: Op) -> Op:
    """The collective on the stream of its axes, beside compute."""
    return altered(op, stream="+".join(op.axes))


def as_sent(ops: Sequence[Op], payloads: Mapping[str, float]) -> list[Op]:
    """Collectives with the bytes that a stack sends for each of the program's, by their labels or
    else by their kinds; what fp8 gathers is of the right size, and keys and values are sent as they
    are."""

    def whole(op: Op) -> Op:
        share = payloads.get(op.label, payloads.get(op.kind))
        as_it_is = op.kind == "all_gather" and op.dtype == "fp8"
        if share is None or as_it_is or op.purpose == KEYS_EXCHANGE:
            return op
        return altered(op, nbytes=scaled(op.nbytes, share))

    return [whole(op) for op in ops]


def follow_up_later(ops: Sequence[Op], is_second: Callable[[Op], bool]) -> list[Op]:
    """A gradient's second collective is issued behind the next gradient's first one.

    `is_second` says which ops may be such. By then its input has had time to come, so that issuing
    it holds up nobody. It is issued sooner where somebody needs what it makes.
    """
    seconds = [op.stream != COMPUTE and is_second(op) for op in ops]
    if not any(seconds):
        return list(ops)
    result: list[Op] = []
    stream_of: dict[str, str] = {}
    held: list[Op] = []
    for op, second in zip(ops, seconds, strict=True):
        if held and _concern(held, op):
            result += held
            held.clear()
        first = stream_of.get(op.reads[0], COMPUTE) if second else COMPUTE
        if first not in (COMPUTE, op.stream):
            held.append(op)
            continue
        result.append(op)
        for name in op.writes:
            stream_of[name] = op.stream
        if held and op.kind == "reduce_scatter" and op.stream == stream_of[held[0].reads[0]]:
            result += held
            held.clear()
    return result + held


def _concern(held: Sequence[Op], op: Op) -> bool:
    touched = {*op.reads, *op.writes}
    return any(touched & {*each.reads, *each.writes} for each in held)
