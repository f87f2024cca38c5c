"""Dropout that every plan does alike: whether an element is kept depends on its place alone.

Element i of a whole tensor (that of the step's batch, flattened, with its rows in the order of the
batch's sequences) is dropped where h(i) < rate * 2^53. With all arithmetic modulo 2^64, h(i) are
the upper 53 bits of mix(i * 0x9E3779B97F4A7C15 + salt), where mix is MurmurHash3's 64-bit
finaliser and salt the first 8 bytes, least significant first, of the SHA-256 of "seed/step/place".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, prod

import torch

from executor.kernels.attentions.heads import head_part
from executor.kernels.context.positions import positions, tokens_of_rank
from executor.kernels.hashing import BITS, STRIDE, signed, upper_bits
from executor.kernels.slices import row_slices
from executor.rank_context import RankContext
from topologies.records import record
from workload.op import Op

Tensors = Sequence[torch.Tensor]
HASHED_BYTES = 32  # what hashing takes an element: 8 bytes a few times over


def dropout(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """Zero what is dropped and scale the rest by 1 / (1 - rate); writes the mask too."""
    source, out, mask = (t.view(-1, t.shape[-1]) for t in (reads[0], *writes))
    block = block_of(op, reads[0].shape, at)
    for part in row_slices(len(mask), _line_bytes(mask), at):
        mask[part] = kept(op, block, at, part)
        _drop(source[part], mask[part], op, out[part])


def dropout_grad(op: Op, reads: Tensors, writes: Tensors, at: RankContext) -> None:
    """The gradient of what was kept, scaled likewise."""
    grad, mask, out = (t.view(-1, t.shape[-1]) for t in (*reads, *writes))
    for part in row_slices(len(mask), _line_bytes(mask), at):
        _drop(grad[part], mask[part], op, out[part])


def scale_of(op: Op) -> float:
    """What makes up for the dropped elements."""
    return float(1 / (1 - op.attributes["rate"]))


@record
class Block:
    """A part of a whole tensor, which has the shape `whole`: where it begins, and its shape.

    The first dimension of the whole is not asked for; `placed` says where in it entries are, where
    they do not follow each other. A block's lines are all its dimensions but
    the last, flattened.
    """

    whole: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    placed: Callable[[torch.Tensor], torch.Tensor] | None = None

    def part(self, starts: tuple[int, ...], shape: tuple[int, ...]) -> Block:
        """The part of this block that begins at `starts` within it."""
        firsts = tuple(a + b for a, b in zip(self.starts, starts, strict=True))
        return Block(self.whole, firsts, shape)

    def line_places(self, lines: slice, device: torch.device) -> torch.Tensor:
        """Where in the flat whole tensor each of some lines begins."""
        index = torch.arange(lines.start, lines.stop, device=device)
        places, stride = torch.full_like(index, self.starts[-1]), self.whole[-1]
        for dim in reversed(range(len(self.shape) - 1)):
            within = index % self.shape[dim] + self.starts[dim]
            places += (self.placed(within) if self.placed and not dim else within) * stride
            index //= self.shape[dim]
            stride *= self.whole[dim]
        return places


def scores_block(op: Op, at: RankContext) -> Block:
    """This rank's scores of a micro-batch, (sequences, heads, sequence, sequence), heads over x."""
    heads, sequence = op.attributes["heads"], op.attributes["sequence"]
    count = op.attributes["rows"] // sequence
    return _scores_block(op, (count, heads, sequence, sequence), at)


def kept(op: Op, block: Block, at: RankContext, lines: slice | None = None) -> torch.Tensor:
    """Which elements of a block are kept, as booleans; of some of its lines, (lines, last)."""
    salt, threshold = _draw(op, at)
    chosen = slice(0, prod(block.shape[:-1])) if lines is None else lines
    places = block.line_places(chosen, at.device)
    columns = torch.arange(block.shape[-1], device=at.device)
    mask = _hashed(places[:, None] + columns, salt).ge(threshold)
    return mask.view(block.shape) if lines is None else mask


def kept_places(op: Op, places: torch.Tensor, at: RankContext) -> torch.Tensor:
    """Which elements at some places of the flat whole tensor are kept, as booleans."""
    salt, threshold = _draw(op, at)
    return _hashed(places, salt).ge(threshold)


def _draw(op: Op, at: RankContext) -> tuple[int, int]:
    """What is added to the places of a tensor, and which hashes are kept."""
    text = f"{at.seed}/{at.step}/{op.attributes['place']}"
    salt = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return salt, ceil(op.attributes["rate"] * 2**BITS)


def _drop(source: torch.Tensor, mask: torch.Tensor, op: Op, out: torch.Tensor) -> None:
    torch.mul(source, mask, out=out).mul_(scale_of(op))


def _line_bytes(mask: torch.Tensor) -> int:
    return HASHED_BYTES * mask.shape[-1]


def block_of(op: Op, shape: Sequence[int], at: RankContext) -> Block:
    """This rank's part of a whole tensor: scores, or else (rows, columns) with columns over y and
    perhaps rows over x."""
    if len(shape) == 4:
        return _scores_block(op, tuple(shape), at)
    rows, columns = shape
    first = at.part_of("rows") * rows if rows < op.attributes["rows"] else 0
    whole = (0, at.grid.y * columns)
    start = at.part_of("width") * columns
    if at.grid.parts_of("positions") > 1:
        return Block(whole, (first, start), (rows, columns), partial(_row_places, op, at))
    first += at.first_sequence(op.micro_batch, op.attributes["rows"], op.part)
    return Block(whole, (first, start), (rows, columns))


def _row_places(op: Op, at: RankContext, rows: torch.Tensor) -> torch.Tensor:
    """Where among the rows of the step's batch some rows of a micro-batch are."""
    sequence = int(op.attributes["sequence"])
    tokens = tokens_of_rank(sequence, at)
    first = at.first_sequence(op.micro_batch, op.attributes["rows"] // tokens, op.part)
    return (first + rows // tokens) * sequence + positions(rows, sequence, at)


def _scores_block(op: Op, shape: tuple[int, ...], at: RankContext) -> Block:
    count, heads, *square = shape
    first = at.first_sequence(op.micro_batch, count, op.part)
    part, parts = head_part(op, at)
    return Block((0, parts * heads, *square), (first, part * heads, 0, 0), shape)


def _hashed(places: torch.Tensor, salt: int) -> torch.Tensor:
    return upper_bits(places.mul_(signed(STRIDE)).add_(signed(salt)))
