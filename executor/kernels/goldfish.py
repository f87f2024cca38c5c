"""Goldfish loss: which tokens the loss leaves out, and the mean over those that it keeps.

Target i of a sequence (counted from 0) is left out where H(t[i-h], ..., t[i-1]) < 2^53 / k, with t
the sequence's targets and, all arithmetic modulo 2^64, H the upper 53 bits of mix(c), where mix is
MurmurHash3's 64-bit finaliser and c comes from c = 0 by c = (c + t + 1) * 0x9E3779B97F4A7C15 for
each of the h tokens in turn. The first h targets of a sequence are kept. So a passage that comes
again, in any step, run or plan, leaves out the same tokens from the h-th on.
Source: Hans et al. (2024), "Be like a Goldfish, Don't Memorize!" (arXiv 2406.10209), section 3:
loss and hash of the preceding tokens. The hash function is simgpt's own; the authors' code draws
from a table of random numbers, at the product of h targets of which the last is the token itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.kernels.context.positions import chunks
from executor.kernels.hashing import BITS, STRIDE, signed, upper_bits
from executor.kernels.slices import row_slices
from executor.rank_context import RankContext
from workload.op import Op

Tensors = Sequence[torch.Tensor]
TARGET_BYTES = 48  # what hashing takes a target: 8 bytes a few times over


def goldfish(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """1 for each target that the loss keeps, 0 for each that it leaves out."""
    sequence = int(op.attributes["sequence"])
    parts = chunks(sequence, at)
    length, h = parts[0].stop - parts[0].start, op.attributes["h"]
    targets, mask = (tensor.view(-1, length) for tensor in (reads[0], writes[0]))
    for part in row_slices(len(targets), TARGET_BYTES * (length + h), at):
        own = targets[part]
        if len(reads) > 1:
            own = torch.cat([reads[1].view(-1, h)[part], own], 1)
        mask[part] = kept(own, op.attributes["k"], h)[:, -length:]
    if len(reads) > 1 and parts[0].start < h:
        _keep_firsts(mask.view(-1, len(parts), length), parts, h)


def _keep_firsts(mask: torch.Tensor, parts: Sequence[slice], h: int) -> None:
    """Keep the first h targets of each sequence, (sequences, chunks, length)."""
    for number, part in enumerate(parts):
        mask[:, number, : max(h - part.start, 0)] = 1


def kept(targets: torch.Tensor, k: int, h: int) -> torch.Tensor:
    """Which targets of (sequences, sequence) the loss keeps, as booleans."""
    mask = torch.ones_like(targets, dtype=torch.bool)
    count = targets.shape[1] - h
    if count > 0:
        mixed = torch.zeros_like(targets[:, :count])
        for place in range(h):
            mixed.add_(targets[:, place : place + count]).add_(1).mul_(signed(STRIDE))
        mask[:, h:] = upper_bits(mixed).ge(-(-(2**BITS) // k))
    return mask


def kept_mean(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The loss as the mean over the kept tokens, and the square of its gradient's norm, from the
    sum over the kept tokens and their number, both divided by all tokens."""
    total, square = reads
    loss, norm_square = writes
    torch.div(total[:1], total[1:], out=loss)
    torch.div(square, total[1:].square(), out=norm_square)
