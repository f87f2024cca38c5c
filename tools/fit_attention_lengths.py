"""Fits how cuDNN's attention on Hopper speeds up with the sequence; prints a stack's keys.

    python -m tools.fit_attention_lengths

cudnn_lengths.csv has bf16 kernels of an H200, whose compute is the H100's, in milliseconds, from
NVIDIA/cudnn-frontend@df73764, benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn,
llama3.1: one sequence, 64 heads of 128 columns (8 of keys), under a causal mask and without one. A
kernel's time over its FLOPs goes as 1 + half/s with s tokens: `half` is fitted to every other
length, and the others judge it.
"""

from __future__ import annotations

import csv
from pathlib import Path

import click
import numpy as np

TABLE = Path(__file__).with_name("cudnn_lengths.csv")
PASSES = ("forward", "backward")


def points(masked: str, way: str) -> tuple[list[float], list[float]]:
    """Lengths, and time over FLOPs up to a factor."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["masked"] == masked]
    lengths = [float(row["sequence"]) for row in rows]
    times = [float(row[f"{way}_ms"]) / length**2 for row, length in zip(rows, lengths, strict=True)]
    return lengths, times


def fit(masked: str, way: str) -> tuple[float, float]:
    """The half length, and the largest relative error of the lengths that were left out."""
    lengths, times = map(np.array, points(masked, way))
    seen, left = slice(None, None, 2), slice(1, None, 2)
    slope, level = np.polyfit(1 / lengths[seen], times[seen], 1, w=1 / times[seen])
    half = float(slope / level)
    worst = np.max(np.abs(level * (1 + half / lengths[left]) / times[left] - 1))
    return half, float(worst)


@click.command()
def main() -> None:
    """Fits both passes, with and without a mask."""
    for masked in ("yes", "no"):
        for way in PASSES:
            half, worst = fit(masked, way)
            print(f"masked {masked}, {way}: half {half:.0f}; {worst:.3f} off at most")


if __name__ == "__main__":
    main()
