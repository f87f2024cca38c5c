"""How long fused attention takes: FLOPs at a kernel's rate, by sequence, heads and width.

Letters: s is the sequence, b a block's rows of it, w the width of a head, v that of its values,
where it is another (latent attention); k is the keys that an op counts for each query: s, or the
tokens of a sliding window; d is a document, where several are packed in a sequence.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from topologies.hardware.attention import Pass, Shape
from topologies.hardware.device import Device
from topologies.records import record
from workload.models.documents import counted_pairs, lengths
from workload.op import BUSIEST, LONGEST, QUERIES, Op
from workload.op import CAUSAL as MASKED

CAUSAL = 0.5
HEAD = 128  # columns of the heads whose share of the peak a machine's file gives
STEP, WIDEST = 32, 256
WINDOW: Final = "window"
PACKED: Final = "documents"
REFERENCE = 8192  # tokens at which stacks give the shares of the peak of their own kernels
BACKWARD_KERNELS = 3  # the sums of rows, the gradients, the cast of the queries'


@record
class Halves:
    """How a kernel of a software stack speeds up with the sequence: at so many tokens half of its
    time is what it loses, forward and backward, under a causal mask and without one. The stack's
    shares of the peak are those of `REFERENCE` tokens under the mask.

    Source: tools/fit_attention_lengths.py, cuDNN 9.19 on an H200.
    """

    masked: tuple[float, float]
    unmasked: tuple[float, float]

    def slowdown(self, op: Op) -> float:
        """A sequence's time over that at the stack's share.

        >>> halves = Halves((8192, 8192), (0, 0))
        >>> halves.slowdown(Op("a", "attention", (), (), attributes={"sequence": 4096}))
        1.5
        >>> unmasked = {"sequence": 4096, MASKED: False}
        >>> halves.slowdown(Op("a", "attention", (), (), attributes=unmasked))
        0.5
        """
        if "sequence" not in op.attributes or WINDOW in op.attributes or PACKED in op.attributes:
            return 1.0
        way = op.kind == "attention_grad"
        own = (self.masked if op.attributes.get(MASKED, True) else self.unmasked)[way]
        loss = own / int(op.attributes["sequence"])
        return (1 + loss) / (1 + self.masked[way] / REFERENCE)


def attention_s(
    device: Device,
    peak_flops_per_s: float,
    op: Op,
    causal: bool = True,
    halves: Halves | None = None,
) -> float:
    """Fused attention: its FLOPs at the kernel's share of the peak.

    An op counts the whole square, or of a window as many keys for each query, forward once and
    backward twice. A causal kernel does half of
    the forward; its backward does 5 matmuls for the forward's 2, that is 2.5 times as much where
    values are as wide as keys. Where they are not, the mean of both widths counts. At the later
    steps of a ring (`workload/lowering/layers/context/ring.py`) half of the square is left too,
    none of it under the mask. Where ranks have different documents the busiest one's FLOPs count.
    `halves` say how the rate of a kernel without a shape goes with the sequence.
    Source: Dao (FlashAttention-2, arXiv 2307.08691), sections 3.2 and 4.1. Not modelled: heads of
    keys shared by several of queries, the order in which a kernel starts its blocks, and kernels
    that take values of another width only with zeros behind them.
    """
    backward = op.kind == "attention_grad"
    widths, sequence = widths_of(op), op.attributes.get("sequence")
    attention, shape, width = device.attention, device.attention.shape, sum(widths) // 2
    wide = sum(padded(each) * each for each in widths) / sum(widths)
    work, rate = op.flops * float(op.attributes.get(BUSIEST, 1.0)) * wide, attention.forward
    if backward:
        work, rate = work * backward_over_forward(op) / 2, attention.backward
    if shape is None or sequence is None:
        square = worked_share(op, 0) if causal else 1.0
        square *= halves.slowdown(op) if halves else 1.0
        return device.launch_s + square * work / (peak_flops_per_s * rate)
    own, sequence = shape.backward if backward else shape.forward, int(sequence)
    counted = op.flops / ((4 if backward else 2) * keys_of(op) * sum(widths))
    rows = float(op.attributes.get(QUERIES, counted))  # of all heads
    nbytes = own.memory * rows * width * wide
    masked = causal and bool(op.attributes.get(MASKED, True))
    share = worked_share(op, shape.rows) if masked else CAUSAL if causal else 1.0
    work *= share * waves_of(shape, op, rows / sequence, masked) / width_share(own, width)
    moving_s = nbytes / (device.memory_efficiency * device.memory_bytes_per_s)
    launches = BACKWARD_KERNELS if backward else 1
    return launches * device.launch_s + work / (peak_flops_per_s * rate) + moving_s


def keys_of(op: Op) -> float:
    """The keys that an op counts for each query, of documents of several lengths in the mean."""
    sequence, window = int(op.attributes.get("sequence", 0)), int(op.attributes.get(WINDOW, 0))
    if packing := op.attributes.get(PACKED):
        return counted_pairs(packing, window) / sequence
    return window or sequence


def worked_share(op: Op, rows: int) -> float:
    """The part of the scores that an op counts that a kernel with blocks of so many rows works
    through under the mask."""
    sequence, window = int(op.attributes.get("sequence", 0)), int(op.attributes.get(WINDOW, 0))
    if packing := op.attributes.get(PACKED):
        return packed_share(packing, rows, window)
    return square_share(rows, sequence, causal=True, keys=window or sequence)


def waves_of(shape: Shape, op: Op, heads: float, masked: bool) -> float:
    """What `waves` says of so many heads of sequences, of documents of several lengths too."""
    sequence, window = int(op.attributes["sequence"]), int(op.attributes.get(WINDOW, 0))
    if packing := op.attributes.get(PACKED):
        blocks, longest = packed_blocks(packing, shape.rows, window)
        longest = float(op.attributes.get(LONGEST, longest))
        each = heads * blocks / shape.units
        return max(longest, each + 0.5) / each
    return waves(shape, heads, sequence, masked, window or sequence)


def widths_of(op: Op) -> tuple[int, int]:
    """The widths of a head's queries and keys, and of its values."""
    width = int(op.attributes.get("width", HEAD))
    return width, int(op.attributes.get("value_width", width))


def backward_over_forward(op: Op) -> float:
    """The FLOPs of a fused backward over those of the forward: three matmuls have the width of
    keys, two that of values, where the forward has one of each.

    >>> backward_over_forward(Op("a", "attention", (), (), attributes={"width": 64}))
    2.5
    """
    width, values = widths_of(op)
    return (3 * width + 2 * values) / (width + values)


def padded(width: int) -> float:
    """How many columns a fused kernel works through for each one of a head of this width.

    Source: Dao-AILab/flash-attention, csrc/flash_attn/src: kernels for widths in steps of 32 up
    to 256, but 128.

    >>> padded(128), padded(72), padded(160)
    (1.0, 1.3333333333333333, 1.0)
    """
    return math.ceil(width / STEP) * STEP / width if width <= WIDEST else 1.0


def width_share(own: Pass, width: int) -> float:
    """The rate with heads of a width over that with heads of 128 columns, for padded columns.

    >>> width_share(Pass(softmax=32.0, wide=0.8, uneven=0.9, memory=0.0), 64)
    0.8333333333333333
    """
    columns = width * padded(width)
    share = columns / (columns + own.softmax) * (HEAD + own.softmax) / HEAD
    return share * (own.wide if columns > HEAD else 1.0) * (own.uneven if width % STEP else 1.0)


def square_share(rows: int, sequence: int, causal: bool, keys: int = 0) -> float:
    """The part of the counted scores that is worked through: with a mask, the blocks on the
    diagonal whole, so 1/2 + b / 2s of the square.

    Of a window's k keys for each query, 1 - k / 2s are there, since the first queries have fewer
    tokens before them; of the blocks on the diagonal and at the window's other end a half more
    each, as a kernel skips those that are masked whole (FlashAttention-2's `window_size`).

    >>> square_share(128, 2048, causal=True), square_share(128, 2048, causal=True, keys=512)
    (0.53125, 1.09375)
    """
    if not causal:
        return 1.0
    s, k = max(sequence, 1), keys or max(sequence, 1)
    edges = min(rows, s) * (2 * s - k) / (2 * s * k)
    return 1 - k / (2 * s) + edges


def waves(shape: Shape, heads: float, sequence: int, causal: bool, keys: int = 0) -> float:
    """How much longer than all blocks spread evenly the device's units take for them.

    Blocks of one length run in whole waves. Under a mask their lengths grow from one tile to all,
    so that a unit that is done takes the next block: what is lost is half a block at the end
    (greedy scheduling: Graham, SIAM J. Appl. Math. 1969, bounds it by the longest), and no unit is
    done before the longest block is, of 2 t / (t + 1) times the mean for t tiles; with a window the
    longest has the keys of the window and of its own tile.

    >>> from topologies.machine_files import load_machine
    >>> shape = load_machine("dgx-a100").device.attention.shape
    >>> waves(shape, 54, 256, causal=False), round(waves(shape, 60, 256, causal=False), 3)
    (1.0, 1.8)
    """
    tiles = math.ceil(sequence / shape.rows)
    each = heads * tiles / shape.units
    if not causal:
        return math.ceil(each - 1e-9) / each
    longest = 2 * tiles / (tiles + 1)
    if 0 < keys < sequence:
        mean = keys * square_share(shape.rows, sequence, True, keys)
        longest = min(keys + shape.rows, sequence) / mean
    return max(each + 0.5, longest) / each


def causal_flops(op: Op) -> float:
    """The FLOPs of a fused attention op that a causal kernel does, of the whole square that the op
    counts: half of the forward, and 2.5 times as many in the backward; of a window 1 - k / 2s.

    Source: as `attention_s`. Not counted: what blocks on the diagonal and padded columns add.

    >>> causal_flops(Op("a", "attention", (), (), flops=8)), causal_flops(
    ...     Op("a", "attention_grad", (), (), flops=16)
    ... )
    (4.0, 10.0)
    """
    backward = backward_over_forward(op) / 2 if op.kind == "attention_grad" else 1.0
    share = worked_share(op, 0)
    return share * backward * op.flops


def packed_share(packing: str, rows: int, window: int) -> float:
    """The part of the scores counted of documents that is worked through: the mean of
    `square_share`, weighed by what each document counts, d min(d, k).

    >>> packed_share("2x4", 0, 0), packed_share("6+2", 1, 0)
    (0.5, 0.6)
    """
    counted = [(d, min(d, window or d), n) for d, n in Counter(lengths(packing)).items()]
    worked = sum(n * d * k * square_share(rows, d, True, k) for d, k, n in counted)
    return worked / sum(n * d * k for d, k, n in counted)


def packed_blocks(packing: str, rows: int, window: int) -> tuple[int, float]:
    """How many blocks of so many rows the documents have, and how many times the mean of all the
    longest one takes, as in `waves`: one kernel works through all documents.
    Source: Dao-AILab/flash-attention, flash_attn_varlen_func.

    >>> packed_blocks("256+2x128", 128, 0)
    (4, 1.6)
    """
    blocks, worked, longest = 0, 0.0, 0.0
    for d, n in Counter(lengths(packing)).items():
        tiles, k = math.ceil(d / rows), min(d, window or d)
        whole = k == d
        each = (tiles + 1) / 2 if whole else k * square_share(rows, d, True, k) / rows
        longest = max(longest, float(tiles) if whole else min(k + rows, d) / rows)
        blocks, worked = blocks + n * tiles, worked + n * tiles * each
    return blocks, longest * blocks / worked
