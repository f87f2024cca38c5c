"""Fits the kernels of a Mamba-2 layer to profiles of training steps; prints what they say.

    python -m tools.scan_kernels

nemotron_kernels.csv has Nsight Systems' sums over the kernels of one step of Nemotron 3 Nano on an
H100 SXM, of the tokens of a micro-batch: github.com/GiscardBiamby/Automodel-scalingai-f26@5750724,
mfu (nsys_breakdown.md of the runs named there; packs of 4,096 tokens for each GPU as its report has
them). `all` is all kernels of scans and convolutions, with so many forward passes. Gates are
in the norm there, as NVIDIA-NeMo/Automodel calls the kernels. The rate of products is fitted to
single kernels of a scan; their sums, `all`, are not, and judge it.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

from simulator.costs import scans
from topologies.hardware.device import Device
from topologies.machine_files import load_machine
from workload.op import Op
from workload.op_attributes import Attributes

NANO: Attributes = {"heads": 64, "groups": 8, "width": 64, "state": 128, "chunk": 128}
NANO["sequence"] = 4096
CONVOLVED, COLUMNS = 64 * 64 + 2 * 8 * 128, 512  # columns of x, B and C, and of a norm's group
ITEM = 2
STATES, SCAN, X_GRAD = ("ssd", 1), ("ssd", 4), ("ssd_grad", 7)  # which of a pass' kernels
FITTED = {"states": STATES, "scan": SCAN, "x_grad": X_GRAD}


@dataclass(frozen=True)
class Measured:
    """One kernel of a run: tokens, forward passes in a step, its name, seconds of one call."""

    run: str
    tokens: int
    forwards: int
    kernel: str
    seconds: float


def measured() -> Iterator[Measured]:
    """The rows of the table, those of all kernels with the seconds of one layer."""
    with Path(__file__).with_name("nemotron_kernels.csv").open() as file:
        for row in csv.DictReader(file):
            seconds = float(row["ms"]) / 1e3 / int(row["calls"])
            tokens, forwards = int(row["tokens"]), int(row["forwards"])
            yield Measured(row["run"], tokens, forwards, row["kernel"], seconds)


def ungated(op: Op) -> list[scans.Kernel]:
    """An op's kernels where the gate is in the norm: a scan reads and writes x alone, and none
    makes the gate's gradients."""
    found, x = list(scans.kernels(op)), ITEM * NANO["heads"] * NANO["width"]
    if op.kind == "ssd_grad":
        return [kernel for at, kernel in enumerate(found) if at != len(list(_states(op)))]
    return [*found[:-1], replace(found[-1], nbytes=found[-1].nbytes - 2 * x)]


def _states(op: Op) -> Iterator[scans.Kernel]:
    """What a pass begins with: the kernels before a scan's last one."""
    yield from list(scans.kernels(replace(op, kind="ssd")))[:-1]


def scan_op(kind: str, tokens: int) -> Op:
    """A scan of one sequence, whose rows need not be turned."""
    return Op("a", kind, (), (), attributes={**NANO, "rows": tokens, "sequence": tokens})


def kernel_s(device: Device, kernel: scans.Kernel, tokens: int, flops_per_s: float) -> float:
    """A kernel's seconds at a rate of its products."""
    achieved = device.memory_efficiency * device.memory_bytes_per_s
    flops = sum(each for each, _, _ in kernel.products)
    return device.launch_s + tokens * (kernel.nbytes / achieved + flops / flops_per_s)


def products_flops_per_s(device: Device) -> float:
    """The rate that meets the sum of the single kernels' times."""
    flops = left_s = 0.0
    for row in measured():
        if row.kernel in FITTED:
            kind, at = FITTED[row.kernel]
            kernel = _one(kind, at, row.tokens)
            flops += row.tokens * sum(each for each, _, _ in kernel.products)
            left_s += row.seconds - kernel_s(device, replace(kernel, products=()), row.tokens, 1.0)
    return flops / left_s


def _one(kind: str, at: int, tokens: int) -> scans.Kernel:
    """A kernel by its place among those of a pass without a gate."""
    return ungated(scan_op(kind, tokens))[at - (kind == "ssd_grad")]


def all_s(device: Device, row: Measured, flops_per_s: float) -> float:
    """All kernels of scans and convolutions of a layer, as they are predicted."""
    passes = {"ssd": row.forwards, "ssd_grad": 1}
    total = sum(
        count * kernel_s(device, kernel, row.tokens, flops_per_s)
        for kind, count in passes.items()
        for kernel in ungated(scan_op(kind, row.tokens))
    )
    for kind, count, traffic in (("ssd_conv", row.forwards + 1, 2), ("ssd_conv_grad", 1, 3)):
        nbytes = traffic * ITEM * CONVOLVED * row.tokens
        total += count * scans.seconds(device, 1.0, Op("a", kind, (), (), nbytes=nbytes))
    return total


def shares(device: Device, kernel: str, traffic: int) -> list[float]:
    """The parts of the memory's bandwidth that a convolution's kernel reached."""
    moved = traffic * ITEM * CONVOLVED / device.memory_bytes_per_s
    return [moved * row.tokens / row.seconds for row in measured() if row.kernel == kernel]


def norm_rows_s(device: Device) -> list[float]:
    """Seconds of a row of a norm's gradients: of as many as a program goes through."""
    about: Attributes = {"groups": NANO["groups"], "columns": COLUMNS}
    assert device.scan is not None
    counting = replace(device, scan=replace(device.scan, norm_row_s=1.0), launch_s=0.0)
    found = []
    for row in measured():
        if row.kernel == "norm_grad":
            op = Op("a", "group_norm_grad", (), (), attributes={**about, "rows": row.tokens})
            found.append(row.seconds / (scans.norm_grad_s(counting, op) or 1.0))
    return found


@click.command()
def main() -> None:
    """Print the fit and what it says of all kernels together."""
    device = load_machine("dgx-h100").device
    rate = products_flops_per_s(device)
    print(f"products: {rate / 1e12:.0f} TFLOP/s")
    for kernel, traffic in (("conv", 2), ("conv_grad", 3)):
        print(f"{kernel}: {statistics.fmean(shares(device, kernel, traffic)):.3f} of the bandwidth")
    print(f"norm's gradients: {statistics.fmean(norm_rows_s(device)) * 1e6:.2f} us a row")
    for row in measured():
        if row.kernel == "all":
            found = all_s(device, row, rate)
            print(f"{row.run}: {found * 1e3:.2f} of {row.seconds * 1e3:.2f} ms a layer")


if __name__ == "__main__":
    main()
