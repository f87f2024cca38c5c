"""Fits fused attention to every other shape measured on an MI300X; prints it as keys of a GPU.

    python -m tools.fit_mi300x_attention baseline_attention.csv

The file is output/baseline_attention.csv of AMD-AGI/Primus-Turbo@221d75f: bf16 attention by AITER
and Composable Kernel, forward and backward in milliseconds. Rows under a mask count. The shapes
left out judge the fit. `uneven` is not seen. A block's rows are 128 or 256.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.attention import attention_s
from tools.fit_cudnn_attention import Row, op_of
from tools.fit_network import Vector, simplex
from topologies.hardware.attention import Attention, Pass, Shape
from topologies.machine import Machine
from topologies.machine_files import build_machine
from topologies.parts import Parts

PASSES = (("forward", "attention", "Forward"), ("backward", "attention_grad", "Backward"))
SHAPE = ("Batch", "SeqLen", "num_head_q", "head_dim_qk", "head_dim_v")
UNITS, ROWS = 304, (128, 256)  # compute units of an MI300X
NAMES = ("share", "softmax", "wide", "memory")
START = (0.35, 10.0, 0.5, 5.0)
GIVEN = click.Path(exists=True, dir_okay=False, path_type=Path)


def mi300x() -> Machine:
    """A node of MI300X."""
    return build_machine(Parts("mi300x", 1))


def rows_of(path: Path, kind: str) -> list[Row]:
    """The measured shapes of a pass under a mask as ops, with their seconds."""
    column = next(f"{name} Time (ms)" for _, each, name in PASSES if each == kind)
    with path.open(encoding="utf-8", newline="") as file:
        return [
            (op_of(kind, *(int(row[key]) for key in SHAPE)), float(row[column]) / 1e3)
            for row in csv.DictReader(file)
            if row["Causal"] == "True" and row[column]
        ]


def error(machine: Machine, rows: int, values: Vector, measured: Sequence[Row]) -> float:
    """The mean absolute error of rows with a pass's constants, with so many rows in a block."""
    share, softmax, wide, memory = map(float, values)
    own = Pass(softmax, wide, 1.0, memory)
    attention = Attention(share, share, Shape(UNITS, rows, own, own))
    device, peak = replace(machine.device, attention=attention), peak_flops_per_s(machine, "bf16")
    ratios = (attention_s(device, peak, op) / seconds for op, seconds in measured)
    return statistics.fmean(abs(ratio - 1) for ratio in ratios)


def fit(machine: Machine, rows: int, seen: Sequence[Row]) -> tuple[float, Vector]:
    """The error and the constants of a pass with so many rows in a block."""

    def judged(logs: Vector) -> float:
        if max(logs[0], logs[2]) > 0:
            return math.inf
        return error(machine, rows, np.exp(logs), seen)

    best, logs = simplex(judged, np.log(START), 600)
    return best, np.exp(logs)


@click.command()
@click.argument("path", metavar="FILE", type=GIVEN)
def main(path: Path) -> None:
    """Fits both passes with the rows in a block that serve both best."""
    machine, kinds = mi300x(), [kind for _, kind, _ in PASSES]
    measured = {kind: rows_of(path, kind) for kind in kinds}
    tried = {
        rows: {kind: fit(machine, rows, measured[kind][::2]) for kind in kinds} for rows in ROWS
    }
    rows = min(ROWS, key=lambda rows: sum(tried[rows][kind][0] for kind in kinds))
    print(f"rows = {rows}")
    for way, kind, _ in PASSES:
        best, values = tried[rows][kind]
        unseen = error(machine, rows, values, measured[kind][1::2])
        print(f"# {way}: error {best:.3f}, of those left out {unseen:.3f}")
        for name, value in zip(NAMES, values, strict=True):
            print(f"{name} = {value:.3g}")


if __name__ == "__main__":
    main()
