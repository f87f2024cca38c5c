"""Fits how much slower Blackwell multiplies, backward, in attention with heads of 64 columns.

    python -m benchmarks.narrow_heads

narrow_heads.csv has cuDNN's bf16 kernels on a GB200 under a causal mask, `heads` of all sequences
together: those of 128 columns, and those of 64 with windows of 1,024 tokens (9.19; NVIDIA/
cudnn-frontend@df73764 and @afa9f7c, benchmark/sdpa_benchmark_training/results/gb200_919_only_cudnn,
llama3.1_20260226_174648.csv and gpt_oss_20260226_175022.csv) and of 128 (9.22; @60e572b, results/
gpt_oss/gb200/gpt_oss_20260424_100011.csv). A block of 128 keys takes a time of its own, in which
its rows are moved, and as long again for each block of queries that sees it: two numbers for a
width, fitted to relative errors. The second is the rate, and the greater part of whole squares,
which with heads of 64 the tables have not.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topologies.hardware.attention import Pass

ROWS, WIDE, NARROW, LATENT = 128, 128, 64, 160
NAMES = ("width", "window", "sequence", "heads")
TABLE = Path(__file__).with_name("narrow_heads.csv")


@dataclass(frozen=True)
class Measured:
    """Attention of heads of so many columns; without a `window` all tokens before are seen."""

    width: int
    window: int
    sequence: int
    heads: int
    backward_ms: float

    @property
    def blocks(self) -> int:
        """Blocks of keys, of all heads."""
        return self.heads * self.sequence // ROWS

    @property
    def tiles(self) -> float:
        """Blocks of queries that see one of keys, in the mean, those on the edges whole."""
        blocks, seen = self.sequence // ROWS, (self.window or self.sequence) // ROWS
        return sum(min(block, seen) + 1 for block in range(blocks)) / blocks


def measured() -> list[Measured]:
    """The rows of the table."""
    return list(_rows())


def _rows() -> Iterator[Measured]:
    with TABLE.open() as file:
        for row in csv.DictReader(file):
            width, window, sequence, heads = (int(row[key]) for key in NAMES)
            yield Measured(width, window, sequence, heads, float(row["backward_ms"]))


def fitted(width: int) -> tuple[float, float]:
    """Nanoseconds of a block of keys, and of each of the tiles beside it."""
    rows = [each for each in measured() if each.width == width]
    taken_ns = np.array([each.backward_ms * 1e6 / each.blocks for each in rows])
    parts = np.array([np.ones(len(rows)), [each.tiles for each in rows]]) / taken_ns
    (block_ns, tile_ns), *_ = np.linalg.lstsq(parts.T, np.ones(len(rows)), rcond=None)
    return float(block_ns), float(tile_ns)


def softmax_columns() -> float:
    """The columns that a softmax takes as long as, so that narrow heads have the measured share of
    the rate of wide ones (`topologies/hardware/attention.py`)."""
    share = fitted(WIDE)[1] * NARROW / WIDE / fitted(NARROW)[1]
    return (WIDE * NARROW * (1 - share)) / (WIDE * share - NARROW)


def wide(softmax: float, latent: float) -> float:
    """`wide` so that latent attention's heads keep their share of the rate, whatever `softmax`."""
    return latent * WIDE * (LATENT + softmax) / (LATENT * (WIDE + softmax))


def main() -> None:
    """Print the fits and the keys of a GPU."""
    for width in (WIDE, NARROW):
        print(
            "{} columns: {:.1f} ns a block of keys, {:.2f} ns a tile".format(width, *fitted(width))
        )
    softmax = softmax_columns()
    own = Pass(softmax=softmax, wide=wide(softmax, 0.742), uneven=1.0, memory=0.0)
    print(f"softmax = {own.softmax:.0f}, wide = {own.wide:.3f}")


if __name__ == "__main__":
    main()
