"""Fits fused attention of Blackwell to every other shape that NVIDIA measured; prints GPUs' keys.

    python -m tools.fit_cudnn_attention

cudnn_attention.csv has cuDNN's bf16 kernels under a causal mask, in milliseconds, from
NVIDIA/cudnn-frontend: GB200 and GB300 with cuDNN 9.18 and 9.19 (@df73764,
benchmark/sdpa_benchmark_training/results/gb200_919_only_cudnn, gb300_918_only_cudnn and
gb300_919_only_cudnn) and 9.22 (@3929da2, results/{llama3.1,dsv3,kimiK26,gpt_oss}), 2,048 to 32,768
tokens; B200 with 9.10 of June 2025 (@f937055, benchmark/sdpa_benchmark_bf16_training). The kernels
run one by one, with pauses, so that the device is not slowed for its power.

A pass has four constants (topologies/hardware/attention.py): its share of the peak with heads of
128 columns, the columns that a softmax takes as long as, what wider heads have of the rate, by
latent attention's of 192 and 128, and bytes beside the matmuls. Backward heads of 64 columns,
with windows of 128 and 1,024 tokens, give the second. Forward such windows take half as long
again as any of these constants says, so that the second is that of a table without windows
(Dao-AILab/ flash-attention, pull 2605: without a mask 980 TFLOP/s with heads of 64 columns, 1,428
with those of 128), and the three others are fitted to full sequences. The shapes left out judge
the fit. B200's table has heads of 128 alone: of its rows from 4,096 tokens on, which PyTorch
hardly holds up, the share is fitted, with the GB200's other constants.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.attention import attention_s
from tools.fit_network import Vector, simplex
from topologies.hardware.attention import Attention, Pass, Shape
from topologies.machine import Machine
from topologies.machine_files import build_machine
from topologies.parts import Parts
from workload.op import Op
from workload.op_attributes import Attributes

TABLE = Path(__file__).with_name("cudnn_attention.csv")
PASSES = {"forward": "attention", "backward": "attention_grad"}
LONG = 4096
UNITS, ROWS = 148, 128  # streaming multiprocessors of a B200; rows of a block
NAMES = ("share", "softmax", "wide", "memory")
START = (0.6, 60.0, 0.8, 10.0)
NARROW_SHARE = 980 / 1428  # of the rate with heads of 128 columns, forward
SOFTMAX = 128 * 64 * (1 - NARROW_SHARE) / (128 * NARROW_SHARE - 64)
Row = tuple[Op, float]


def op_of(
    kind: str, batch: int, sequence: int, heads: int, width: int, values: int, window: int = 0
) -> Op:
    """The program's op: the whole square, or a window's keys for each query; backward counted
    twice."""
    flops = 2 * batch * heads * sequence * (window or sequence) * (width + values)
    how: Attributes = {"width": width, "value_width": values, "sequence": sequence}
    if window:
        how["window"] = window
    return Op("op", kind, (), (), attributes=how, flops=flops * (1 if kind == "attention" else 2))


def measured(gpu: str, way: str) -> list[Row]:
    """A GPU's shapes as ops of a pass, with their seconds."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu]
    found = []
    for row in rows:
        sequence, width, values, window, batch, heads = (
            int(row[key]) for key in ("sequence", "width", "values", "window", "batch", "heads")
        )
        op = op_of(PASSES[way], batch, sequence, heads, width, values, window)
        found.append((op, float(row[f"{way}_ms"]) / 1e3))
    return found


def error(machine: Machine, values: Sequence[float] | Vector, rows: Sequence[Row]) -> float:
    """The mean absolute error of rows on a machine with a pass's constants."""
    share, softmax, wide, memory = map(float, values)
    own = Pass(softmax, wide, 1.0, memory)
    attention = Attention(share, share, Shape(UNITS, ROWS, own, own))
    device, peak = replace(machine.device, attention=attention), peak_flops_per_s(machine, "bf16")
    return statistics.fmean(abs(attention_s(device, peak, op) / taken - 1) for op, taken in rows)


def fit(machine: Machine, seen: Sequence[Row], softmax: float = 0.0) -> tuple[float, Vector]:
    """The error and the constants of a pass; its softmax may be given."""
    free = np.array([not (softmax and name == "softmax") for name in NAMES])

    def whole(logs: Vector) -> Vector:
        values = np.full(len(NAMES), softmax)
        values[free] = np.exp(logs)
        return values

    def judged(logs: Vector) -> float:
        share, _, wide, _ = values = whole(logs)
        return float("inf") if max(share, wide) > 1 else error(machine, values, seen)

    best, logs = simplex(judged, np.log(START)[free], 2000)
    return best, whole(logs)


def fit_share(machine: Machine, seen: Sequence[Row], others: Sequence[float] | Vector) -> float:
    """The share of a pass with which the others of its constants serve rows best."""
    shares = np.arange(0.3, 1.0, 0.001)
    return float(min(shares, key=lambda share: error(machine, (share, *others), seen)))


@click.command()
def main() -> None:
    """Fits both passes of GB200 and GB300, and the shares of the B200 of 2025."""
    for way in PASSES:
        for gpu in ("GB200", "GB300"):
            machine, rows = build_machine(Parts(gpu.lower(), 1)), measured(gpu, way)
            if way == "forward":
                rows = [row for row in rows if "window" not in row[0].attributes]
            best, values = fit(machine, rows[::2], SOFTMAX if way == "forward" else 0.0)
            left = error(machine, values, rows[1::2])
            said = ", ".join(
                f"{name} {value:.4g}" for name, value in zip(NAMES, values, strict=True)
            )
            print(
                f"{gpu} {way}: {said}; mean error {best:.3f} of {len(rows[::2])}, "
                f"{left:.3f} of the {len(rows[1::2])} left out"
            )
            if gpu == "GB200":
                old, others = build_machine(Parts("b200", 1)), values[1:]
                table = [
                    row for row in measured("B200", way) if row[0].attributes["sequence"] >= LONG
                ]
                share = fit_share(old, table[::2], others)
                left = error(old, (share, *others), table[1::2])
                print(f"B200 {way} of June 2025: share {share:.3f}; {left:.3f} of those left out")


if __name__ == "__main__":
    main()
