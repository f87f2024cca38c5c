"""The host that issues ops one by one: where it is slower than the device, the device waits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from workload.op import COMPUTE, STEP, Op


def launch_bound(
    ops: Sequence[Op], ticks: Sequence[int], each: Sequence[int], copies: Sequence[int] = ()
) -> list[int]:
    """Ticks of ops as a host allows that takes so many ticks to issue `each`.

    A host runs ahead of its device by many kernels, so that short ones hide behind long ones: a
    block lasts as long as its ops take on the device, or as it takes to issue them all, whichever
    is longer. What is missing goes to its compute ops in equal shares. Ops that cost nothing are
    no kernels; the host issues a collective on the compute stream as it does a kernel. The closing
    block's ops on many parameters are issued at once, so they are left alone, and messages between
    slots are too. Where ops are copies, `copies` tells blocks of the same name apart. Not modelled:
    how far ahead the host may run from one block to the next, and that backward passes are issued
    faster than forward ones.
    """
    result = list(ticks)
    blocks = list(zip([op.block for op in ops], copies or [0] * len(ops), strict=True))
    for (block, _), group in groupby(range(len(ops)), key=lambda at: blocks[at]):
        own = [at for at in group if ticks[at] and _is_issued(ops[at])]
        kernels = [at for at in own if not ops[at].communicates]
        missing = sum(each[at] for at in own) - sum(ticks[at] for at in own)
        if block == STEP or missing <= 0 or not kernels:
            continue
        share, rest = divmod(missing, len(kernels))
        for number, at in enumerate(kernels):
            result[at] += share + (number < rest)
    return result


def _is_issued(op: Op) -> bool:
    return op.stream == COMPUTE and not op.is_message
