"""Kernels of Mamba-2 layers: what each moves and multiplies by hand, and profiles of training."""

from __future__ import annotations

import statistics

import pytest

from simulator.costs import scans
from simulator.costs.analytic import AnalyticCosts
from tools import scan_kernels
from topologies.machine_files import load_machine
from workload.gpt import find_model
from workload.models import mamba2
from workload.op import Op
from workload.op_attributes import Attributes

SCAN: Attributes = {"heads": 64, "groups": 8, "width": 64, "state": 128, "chunk": 128}
SCAN |= {"rows": 8192, "sequence": 8192}


def test_the_traffic_of_a_scan_by_hand() -> None:
    """For a token x takes 8,192 bytes, B and C 2,048 each, a chunk's states 8,192 in bf16 and twice
    that in fp32, C B^T 4,096; sums of decays and steps 512, and dt 128."""
    x, b, states, cb, steps = 8192, 2048, 8192, 4096, 512
    op = Op("a", "ssd", (), (), attributes=SCAN)
    found = [kernel.nbytes for kernel in scans.kernels(op)]
    assert found == [
        128 + steps,
        b + x + steps + 2 * states,
        2 * states + states,
        2 * b + cb,
        cb + 4 * x + b + states + steps,
    ]
    flops = sum(each for kernel in scans.kernels(op) for each, _, _ in kernel.products)
    nano = find_model("nemotron-3-nano")
    assert flops == mamba2.scan_flops(nano)


def test_the_traffic_of_the_gradients_of_a_scan_by_hand() -> None:
    """States, and gradients of states, stand in fp32 until their recurrence has cast both; what is
    summed over one part is copied."""
    x, b, states, cb, steps = 8192, 2048, 8192, 4096, 512
    op = Op("a", "ssd_grad", (), (), attributes=SCAN)
    found = [kernel.nbytes for kernel in scans.kernels(op)]
    recurrence, gate, of_states, back, of_x = found[2], *found[4:8]
    assert (recurrence, gate) == (4 * states, 6 * x)
    assert of_states == b + x + steps + 2 * states
    assert back == 6 * states
    assert of_x == 3 * x + b + states + cb + steps
    of_b = x + b + states + steps + 2 * b
    assert found[8:12] == [of_b, 4 * b, of_b, 4 * b]
    assert found[12:14] == [2 * x + steps + cb, 2 * cb]


def test_rows_of_several_sequences_are_turned_before_and_behind() -> None:
    """The first linear makes z, x, B, C and dt, 20,608 bytes; a scan's output has x's."""
    made, x = 2 * 8192 + 2 * 2048 + 128, 8192
    for kind, turned in (("ssd", (made, x)), ("ssd_grad", (x, made))):
        plain, two = (
            [
                kernel.nbytes
                for kernel in scans.kernels(
                    Op("a", kind, (), (), attributes={**SCAN, "sequence": sequence})
                )
            ]
            for sequence in (8192, 4096)
        )
        assert two == [2 * turned[0], *plain, 2 * turned[1]]


def test_a_norms_gradients_take_as_long_as_a_program_goes_through_its_rows() -> None:
    """Two programs of two warps for each of 132 multiprocessors, 33 for each of 8 groups of 512
    columns: 249 rows of 8,192 each."""
    device = load_machine("dgx-h100").device
    about: Attributes = {"rows": 8192, "groups": 8, "columns": 512}
    op = Op("a", "group_norm_grad", (), (), nbytes=1, attributes=about)
    assert device.scan is not None
    expected = device.launch_s + 249 * device.scan.norm_row_s
    assert AnalyticCosts(load_machine("dgx-h100")).seconds(op) == pytest.approx(expected)
    assert scans.norm_grad_s(load_machine("perlmutter").device, op) is None


def test_products_of_a_scan_come_after_its_traffic() -> None:
    device = load_machine("dgx-h100").device
    assert device.scan is not None
    peak = device.peak_flops_per_s["bf16"] * device.matmul.sustained
    op = Op("a", "ssd", (), (), attributes=SCAN)
    achieved = device.memory_efficiency * device.memory_bytes_per_s
    moved = sum(kernel.nbytes for kernel in scans.kernels(op))
    flops = mamba2.scan_flops(find_model("nemotron-3-nano"))
    expected = 8192 * (moved / achieved + flops / device.scan.products_flops_per_s)
    assert scans.seconds(device, peak, op) == pytest.approx(expected + 5 * device.launch_s)


def test_kernels_of_mamba_are_predicted_as_profiles_have_them() -> None:
    """Sums over all kernels of a layer, of which none was fitted, of 4,096 to 32,768 tokens."""
    device = load_machine("dgx-h100").device
    assert device.scan is not None
    rate = scan_kernels.products_flops_per_s(device)
    assert device.scan.products_flops_per_s == pytest.approx(rate, rel=0.01)
    for kernel, traffic, share in (
        ("conv", 2, device.scan.convolution),
        ("conv_grad", 3, device.scan.convolution_grad),
    ):
        found = scan_kernels.shares(device, kernel, traffic)
        assert share == pytest.approx(statistics.fmean(found), rel=0.01)
    row_s = statistics.fmean(scan_kernels.norm_rows_s(device))
    assert device.scan.norm_row_s == pytest.approx(row_s, rel=0.01)
    judged = [row for row in scan_kernels.measured() if row.kernel == "all"]
    errors = [scan_kernels.all_s(device, row, rate) / row.seconds - 1 for row in judged]
    assert 0 < statistics.fmean(errors) < 0.12
    assert max(map(abs, errors)) < 0.2


def test_a_scan_waits_for_memory_and_its_gradients_take_a_few_times_as_long() -> None:
    machine = load_machine("dgx-h100")
    costs = AnalyticCosts(machine)
    forward, backward = (
        costs.seconds(Op("a", kind, (), (), nbytes=1, attributes=SCAN))
        for kind in ("ssd", "ssd_grad")
    )
    moved = sum(k.nbytes for k in scans.kernels(Op("a", "ssd", (), (), attributes=SCAN)))
    device = machine.device
    least = 8192 * moved / (device.memory_efficiency * device.memory_bytes_per_s)
    assert least < forward < 2.5 * least
    assert 2 < backward / forward < 5
