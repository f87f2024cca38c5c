"""Goldfish loss in a program: a mask of tokens that the loss leaves out, the mean over the rest.

How many tokens are kept is known once all ranks' micro-batches are through, so the loss and its
gradients are sums over the kept tokens, divided by the count of all tokens; at the step's end the
share that was kept is summed with the loss, in one all-reduce, and both are divided by it: the loss
at once, the gradients with the factor that clips them.
Source: Hans et al. (2406.10209), section 3; the division at the end is Megatron-Core's
`calculate_per_token_loss`.
"""

from __future__ import annotations

from typing import Any

from workload.lowering.builder import Builder
from workload.op import Buffer

BEFORE = "targets.before"
CHUNKS = 2  # of a sequence on a rank where context splits it
TOTAL = "loss.total"  # the sum of losses over kept tokens and their number, over all tokens


def declare(b: Builder) -> None:
    """Declare what sums of the loss are gathered in."""
    if b.gpt.goldfish_k:
        b.add(Buffer(TOTAL, (2,), b.wide, "workspace", True, b.grid.ranks))


def total(b: Builder) -> str:
    """The name of what the ranks' losses are summed in."""
    return TOTAL if b.gpt.goldfish_k else "loss"


def mask(b: Builder, targets: str) -> list[str]:
    """Emit the choice of the kept tokens among the block's targets; returns the mask's name, if
    any token is left out."""
    gpt = b.gpt
    if not gpt.goldfish_k:
        return []
    name = b.tensor("loss.kept", (b.rows,), "uint8", role="workspace")
    about: dict[str, Any] = {"k": gpt.goldfish_k, "h": gpt.goldfish_h, "sequence": gpt.sequence}
    b.op("loss.goldfish", "goldfish", [targets, *_before(b)], [name], **about)
    return [name]


def _before(b: Builder) -> list[str]:
    """Declare the targets in front of each chunk that a rank has of a sequence, if it is split."""
    if b.plan.cp == 1:
        return []
    shape = (b.plan.mbs, CHUNKS, b.gpt.goldfish_h)
    return [b.inputs(BEFORE, shape, b.grid.parts_of("vocabulary"))]


def of_kept(b: Builder, norm: str) -> list[str]:
    """Emit the division of loss and squared norm by what was kept of all tokens; returns the name
    of what has that share, if any token is left out."""
    if not b.gpt.goldfish_k:
        return []
    b.op("loss.kept.mean", "kept_mean", [TOTAL, norm], ["loss", norm])
    return [TOTAL]
