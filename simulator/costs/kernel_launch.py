"""The host that issues ops one by one: where it is slower than the device, the device waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from workload.kinds import KINDS, OWN_PLACES
from workload.op import BACKWARD, COMPUTE, EXPERT_DISPATCH, STEP, Op


def launch_bound(
    ops: Sequence[Op], ticks: Sequence[int], each: Sequence[int], copies: Sequence[int] = ()
) -> list[int]:
    """Ticks of ops as a host allows that takes so many ticks to issue `each`.

    A host runs ahead of its device by many kernels, so that short ones hide behind long ones: a
    block lasts as long as its ops take on the device, or as it takes to issue them all, whichever
    is longer. What is missing goes to its compute ops in equal shares. Ops that cost nothing are
    no kernels; the host issues a collective on the compute stream as it does a kernel. The closing
    block's ops on many parameters are issued at once, so they are left alone, and messages between
    slots are too. Where ops are copies, `copies` tells blocks of the same name apart.

    Before rows of experts are sent in parts that only the device knows, the host waits for their
    counts, and is ahead of nothing behind that: the ops from there on last as long as the slowest
    way through issuing the first of them and running the rest. Source: NVIDIA/Megatron-LM,
    megatron/core/transformer/moe/token_dispatcher.py, _maybe_dtoh_and_synchronize, in the forward
    pass and when it is recomputed. Not modelled: how far ahead the host may run from one block to
    the next, what the copy of the counts takes, and that backward passes are issued faster than
    forward ones.
    """
    result = list(ticks)
    for every in issued_by_block(ops, copies):
        own = [at for at in every if ticks[at]]
        for part, waited in between_waits(ops, own):
            lasts = _lasts([ticks[at] for at in part], [each[at] for at in part], waited=waited)
            kernels = [at for at in part if not ops[at].communicates]
            missing = lasts - sum(ticks[at] for at in part)
            if missing <= 0 or not kernels:
                continue
            share, rest = divmod(missing, len(kernels))
            for number, at in enumerate(kernels):
                result[at] += share + (number < rest)
    return result


def issued_by_block(ops: Sequence[Op], copies: Sequence[int] = ()) -> Iterator[list[int]]:
    """The places of each block's ops that the host issues, the closing block left out."""
    blocks = list(zip([op.block for op in ops], copies or [0] * len(ops), strict=True))
    for (block, _), group in groupby(range(len(ops)), key=lambda at: blocks[at]):
        if block != STEP:
            yield [at for at in group if is_issued(ops[at])]


def between_waits(ops: Sequence[Op], own: list[int]) -> Iterator[tuple[list[int], bool]]:
    """A block's ops up to where the host waits, and those from there on; with whether it waited."""
    first = next((number for number, at in enumerate(own) if is_awaited(ops[at])), None)
    yield own[:first], False
    if first is not None:
        yield own[first:], True


def _lasts(ticks: list[int], each: list[int], *, waited: bool) -> int:
    """How long ops last. Behind a wait op i begins when i + 1 of them are issued."""
    if not waited:
        return max(sum(ticks), sum(each))
    rest = sum(ticks)
    longest = rest
    for issued, own in zip(accumulate(each), ticks, strict=True):
        longest = max(longest, issued + rest)
        rest -= own
    return longest


def is_awaited(op: Op) -> bool:
    """Whether the host must know how many rows go where before it issues the op."""
    counted = op.purpose == EXPERT_DISPATCH and len(op.reads) > 1
    counted = counted and not op.attributes.get("even", False)
    if op.kind == OWN_PLACES:
        return not op.attributes["places"]
    return op.kind == "all_to_all" and counted and op.block.phase != BACKWARD


def is_issued(op: Op) -> bool:
    """Whether the host issues the op, in turn with others of its stream."""
    return op.stream == COMPUTE and KINDS[op.kind].issued
