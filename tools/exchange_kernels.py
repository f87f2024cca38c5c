"""Fits what kernels reach that send experts' rows, and those that permute them, on Blackwell.

    python -m tools.exchange_kernels

exchange_kernels.csv has microseconds of a kernel, and of HybridEP's `there` and `back` on GB200
GB/s as its page counts them: of rows that a rank gets, its own among them (deepseek-ai/DeepEP@
94a9f8f, docs/README_Hybrid-EP.md and tests/test_hybrid_ep.py; 32 multiprocessors, kernels alone).
The other sources are reports on GitHub, named here by their titles:

sparse: "hybrid-ep-sparse-opt Performance Comparison", eight B200, of the branch hybrid-ep at
1b8f467, whose kernels of permutation are those of 34152ae as well; rows `combine` without
probabilities, as its settings stand. ballot: "Permute / Unpermute Kernel Optimization", B300, its
reference. glm: "GLM-5.2 131K full Flex trace comparison", means of 420 and 840 kernels of a step on
B300. qwen: "Qwen3 235B BF16 256-GPU Profiler Bottleneck Report", B200.

HybridEP's permutations look at each expert of the rank for each row that came, and move bytes: two
numbers, fitted to the relative error of six rows each; no kernel moves more than the device's
bandwidth. A step is nowhere among these.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from topologies.machine_files import load_machine

ITEM = 2
SIZES = ("tokens", "experts", "topk", "ranks", "columns")
MOVERS = ("permute", "unpermute")


@dataclass(frozen=True)
class Measured:
    """One kernel of a run: tokens of a rank, experts, choices, ranks, columns, and how long it
    took, or which rate it reached."""

    source: str
    kernel: str
    tokens: int
    experts: int
    topk: int
    ranks: int
    columns: int
    measured: float

    @property
    def rows(self) -> float:
        """Rows that come to a rank, one for all of a token's experts there."""
        apart = self.experts - self.experts // self.ranks
        none = math.comb(apart, self.topk) / math.comb(self.experts, self.topk)
        return self.tokens * self.ranks * (1 - none)

    @property
    def places(self) -> float:
        """Rows times experts of the rank."""
        return self.rows * (self.experts // self.ranks)

    def nbytes(self, *, of_choices: float = 1, of_rows: float = 0) -> float:
        """Bytes of so many passes over rows for each choice, and over those that come."""
        row = ITEM * self.columns
        return row * (of_choices * self.tokens * self.topk + of_rows * self.rows)


def measured() -> Iterator[Measured]:
    """The rows of the table."""
    with Path(__file__).with_name("exchange_kernels.csv").open() as file:
        for row in csv.DictReader(file):
            tokens, experts, topk, ranks, columns = (int(row[key]) for key in SIZES)
            of_run = (tokens, experts, topk, ranks, columns, float(row["measured"]))
            yield Measured(row["source"], row["kernel"], *of_run)


def fitted(kernel: str, bytes_per_s: float) -> tuple[float, float]:
    """Nanoseconds for a place, and the share of the bandwidth, of one of HybridEP's movers."""
    rows = [each for each in measured() if each.kernel == kernel]
    moved = [each.nbytes(of_rows=1) / bytes_per_s for each in rows]
    parts = np.array([[each.places for each in rows], moved])
    parts /= [each.measured / 1e6 for each in rows]
    (place_s, passes), *_ = np.linalg.lstsq(parts.T, np.ones(len(rows)), rcond=None)
    if passes < 1:
        passes, left = 1.0, 1 - parts[1]
        place_s = parts[0] @ left / (parts[0] @ parts[0])
    return float(place_s * 1e9), float(1 / passes)


def row_ns() -> float:
    """Nanoseconds of a sum's row, the mean over its kernels with narrow rows."""
    each = [found.measured * 1e3 / found.rows for found in measured() if found.kernel == "combine"]
    return sum(each) / len(each)


def links_share(way: str, links_bytes_per_s: float) -> dict[int, float]:
    """By the ranks of a group the share of the links that rows reach there or back."""
    return {
        each.ranks: each.measured * 1e9 * (each.ranks - 1) / each.ranks / links_bytes_per_s
        for each in measured()
        if each.kernel == way
    }


def triton_share(kernel: str, bytes_per_s: float) -> list[float]:
    """Shares of the bandwidth that Transformer Engine's kernels reach: one that sorts reads and
    writes a row for each choice, one that takes or sums rows has those of tokens on one side."""
    rows = [each for each in measured() if each.kernel == kernel]
    passes = 2 if kernel == "te_sort" else 1
    moved = [
        each.nbytes(of_choices=passes) + (2 - passes) * ITEM * each.tokens * each.columns
        for each in rows
    ]
    return [
        nbytes / (each.measured / 1e6) / bytes_per_s
        for nbytes, each in zip(moved, rows, strict=True)
    ]


@click.command()
def main() -> None:
    """Print what a stack's file may hold."""
    machine = load_machine("gb200-nvl72")
    bandwidth = machine.device.memory_bytes_per_s
    for kernel in MOVERS:
        place_ns, share = fitted(kernel, bandwidth)
        print(f"{kernel}: {place_ns:.3f} ns a place, {share:.3f} of the bandwidth")
    print(f"a summed row: {row_ns():.1f} ns")
    for way in ("there", "back"):
        shares = links_share(way, machine.node.device_bytes_per_s)
        print(way, {ranks: round(share, 3) for ranks, share in shares.items()})
    for kernel in ("te_permute", "te_unpermute", "te_sort"):
        print(kernel, [round(share, 3) for share in triton_share(kernel, bandwidth)])


if __name__ == "__main__":
    main()
