"""Fits fused attention by shape to every other row of the measured kernels; prints it as TOML.

    python -m tools.fit_attention

The rows left out judge the fit: the mean absolute errors of both are printed. The search is that of
tools/fit_network.py, over logarithms of a pass's share of the peak and its four constants.
"""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import replace

import click
import numpy as np
from numpy.typing import NDArray

from simulator.costs.analytic import peak_flops_per_s
from simulator.costs.attention import attention_s
from tools.fit_network import simplex
from topologies.files.reading import shipped_text
from topologies.hardware.attention import Attention, Pass, Shape
from topologies.machine import Machine
from topologies.machine_files import load_machine
from workload.op import Op
from workload.op_attributes import Attributes

DEVICES = (("A100", "dgx-a100", 108), ("GH200", "alps", 132))
PASSES = (("forward", "attention", "seconds"), ("backward", "attention_grad", "backward_seconds"))
ROWS, STARTS = 128, ((0.6, 30.0, 0.8, 0.9, 5.0), (0.5, 20.0, 0.8, 0.9, 30.0))
Row = tuple[Op, float]


def rows_of(device: str, kind: str, column: str) -> list[Row]:
    """The measured rows of a device as ops, with their seconds."""
    found = []
    for row in csv.DictReader(shipped_text("validation", "data/kernels.csv").splitlines()):
        if row["device"].startswith(device) and row["op"] == "flash_attention" and row[column]:
            batch, heads, seq, width = (int(row[k]) for k in ("batch", "heads", "seq", "head_dim"))
            flops = 4 * batch * heads * seq * seq * width * (1 if kind == "attention" else 2)
            how: Attributes = {"width": width, "sequence": seq}
            op = Op("op", kind, (), (), flops=flops, attributes=how)
            found.append((op, float(row[column])))
    return found


def error(machine: Machine, units: int, values: NDArray[np.float64], rows: list[Row]) -> float:
    """The mean absolute error of a device's rows with the share and the constants of a pass."""
    share, softmax, wide, uneven, memory = map(float, np.exp(values))
    if max(share, wide, uneven) > 1:
        return math.inf
    own = Pass(softmax, wide, uneven, memory)
    attention = Attention(share, share, Shape(units, ROWS, own, own))
    device, peak = replace(machine.device, attention=attention), peak_flops_per_s(machine, "bf16")
    return statistics.fmean(
        abs(attention_s(device, peak, op, causal=False) / seconds - 1) for op, seconds in rows
    )


def fit(device: str, name: str, units: int, way: str, kind: str, column: str) -> None:
    """Fits one pass on one device, and prints it with both errors."""
    rows, machine = rows_of(device, kind, column), load_machine(name)
    if not rows:
        return
    seen, unseen = rows[::2], rows[1::2]
    fitted, values = min(
        (simplex(lambda at: error(machine, units, at, seen), np.log(start), 300)
         for start in STARTS),
        key=lambda found: found[0],
    )  # fmt: skip
    share, *others = np.exp(values)
    print(f"# {device} {way}: {share:.3f} of the peak; error of the {len(seen)} rows it was")
    print(f"# fitted to {fitted:.3f}, of the other {len(unseen)} "
          f"{error(machine, units, values, unseen):.3f}")  # fmt: skip
    names = ("softmax", "wide", "uneven", "memory")
    print("\n".join(f"{key} = {value:.4g}" for key, value in zip(names, others, strict=True)))


@click.command()
def main() -> None:
    """Fit both passes on each device, and print their constants."""
    for device in DEVICES:
        for each in PASSES:
            fit(*device, *each)


if __name__ == "__main__":
    main()
