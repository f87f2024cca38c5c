"""Fits Blackwell's matmuls to every other one of those measured on a B200; prints the constants.

    python -m tools.fit_matmuls

The data are validation/data/b200_matmuls.csv: Transformer Engine's bf16 matmuls, dense ones and
those of experts, from MooreThreads/SimuMax@4dcaae5, configs/system/b200_bf16_ceperm.json
(Apache-2.0), whose efficiencies are of 2,250 TFLOP/s. `gradient_bytes` is there where a product is
added to a gradient of so many bytes a number. The dense matmuls left out judge the fit; how many
rows an expert must have is fitted to all grouped ones, with the constants of the machine's file.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from simulator.costs.analytic import GROUPED, matmul_s, peak_flops_per_s
from tools.fit_network import Vector, simplex
from topologies.files.reading import shipped_text
from topologies.hardware.device import Matmul
from topologies.machine import Machine
from topologies.machine_files import build_machine
from topologies.parts import Parts
from workload.op import Op
from workload.op_attributes import Attributes

CONSTANTS = ("e_max", "m0", "n0", "k0")
STARTS = ((0.5, 50.0, 50.0, 50.0), (0.55, 1.0, 200.0, 100.0))
NUMBERS = ("count", "m", "n", "k", "gradient_bytes")
ROWS = (0, 50, 100, 150, 200, 250, 300)
Row = tuple[Op, float]


def b200() -> Machine:
    """A node of B200."""
    return build_machine(Parts("b200", 1))


def rows_of(kind: str) -> list[Row]:
    """The measured matmuls of a kind as ops, with their seconds."""
    found = []
    for row in csv.DictReader(shipped_text("validation", "data/b200_matmuls.csv").splitlines()):
        if row["op"] != kind:
            continue
        count, m, n, k, gradient = (int(row[key]) for key in NUMBERS)
        product = 2 * gradient or 2
        how: Attributes = {"form": row["form"], "m": m, "n": n, "k": k, "count": count}
        nbytes = count * (2 * (m * k + k * n) + product * m * n)
        op = Op("op", kind, (), (), flops=2 * count * m * n * k, nbytes=nbytes, attributes=how)
        found.append((op, float(row["seconds"])))
    return found


def error(machine: Machine, own: Matmul, rows: Sequence[Row]) -> float:
    """The mean absolute error of rows with the constants of a matmul."""
    device, peak = replace(machine.device, matmul=own), peak_flops_per_s(machine, "bf16")
    return statistics.fmean(abs(matmul_s(device, peak, op) / seconds - 1) for op, seconds in rows)


@click.command()
def main() -> None:
    """Fits the dense matmuls, then how many rows an expert must have."""
    machine, rows = b200(), rows_of("matmul")
    plain = replace(machine.device.matmul, grouped=0.0)

    def of(values: Vector) -> Matmul:
        constants: dict[str, Any] = dict(zip(CONSTANTS, np.exp(values).tolist(), strict=True))
        return replace(plain, **constants)

    def judged(values: Vector) -> float:
        return error(machine, of(values), rows[::2]) if values[0] < 0 else math.inf

    fitted, values = min(
        (simplex(judged, np.log(start), 400) for start in STARTS), key=lambda found: found[0]
    )
    print(f"# error {fitted:.3f}, of those left out {error(machine, of(values), rows[1::2]):.3f}")
    for name, value in zip(CONSTANTS, np.exp(values), strict=True):
        print(f"{name} = {value:.3g}")
    for wanted in ROWS:
        own = replace(machine.device.matmul, grouped=wanted)
        print(f"grouped = {wanted}: error {error(machine, own, rows_of(GROUPED)):.3f}")


if __name__ == "__main__":
    main()
