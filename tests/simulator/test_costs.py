"""Compute costs: the model's formula by hand, a profile's tables at and between their points."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.analytic import AnalyticCosts, compute_costs, matmul_s
from simulator.costs.calibrated import CalibratedCosts
from simulator.costs.measured import MeasuredCosts
from tests.blocks import BLOCK
from tests.messages import names
from topologies.errors import MachineError
from topologies.hardware.profile import MeasuredTable, Profile
from topologies.machine_files import load_machine, with_settings
from workload.kinds import HOST_KINDS
from workload.op import BUSIEST, CAUSAL, Op
from workload.op_attributes import Attributes

MATMULS = MeasuredTable(
    ("ranks", "form", "m", "n", "k", "seconds"),
    tuple(
        (ranks, 0.0, m, n, k, ranks * 2 * m * n * k / (1e9 * m))
        for ranks in (1.0, 4.0)
        for m in (16.0, 64.0)
        for n in (16.0, 64.0)
        for k in (16.0, 64.0)
    ),
)  # rate 1e9 * m, a power law, which interpolation in logarithms hits exactly
MOVES = MeasuredTable(("ranks", "nbytes", "seconds"), ((1.0, 1e3, 1e-6), (1.0, 1e5, 1e-5)))
PROFILE = Profile(kernels={"matmul@bf16": MATMULS, "gelu@bf16": MOVES})


def matmul(m: int, n: int, k: int, form: str = "NN", dtype: str = "bf16") -> Op:
    attributes: Attributes = {"m": m, "n": n, "k": k, "form": form}
    nbytes = 2 * (m * n + n * k + m * k)
    return Op(
        "op",
        "matmul",
        (),
        (),
        BLOCK,
        nbytes=nbytes,
        flops=2 * m * n * k,
        dtype=dtype,
        attributes=attributes,
    )


def batched(count: int, m: int, n: int, k: int) -> Op:
    one = matmul(m, n, k)
    attributes: Attributes = {**one.attributes, "count": count}
    kind, flops, nbytes = "batched_matmul", count * one.flops, count * one.nbytes
    return replace(one, kind=kind, flops=flops, nbytes=nbytes, attributes=attributes)


def move(nbytes: int, kind: str = "gelu") -> Op:
    return Op("op", kind, (), (), BLOCK, nbytes=nbytes)


def test_a_matmul_takes_its_launch_and_its_flops_at_the_rate_of_its_shape() -> None:
    machine = load_machine("frontier")
    model = machine.device.matmul
    share = model.e_max * 4096 / (4096 + model.m0) * 8192 / (8192 + model.n0)
    share *= 2048 / (2048 + model.k0)
    expected = model.launch_s + 2 * 4096 * 8192 * 2048 / (
        machine.device.peak_flops_per_s["bf16"] * share * model.sustained
    )
    assert AnalyticCosts(machine).seconds(matmul(4096, 8192, 2048)) == pytest.approx(expected)


def test_a_matmul_of_one_row_takes_the_time_of_reading_its_weight() -> None:
    machine = with_settings("frontier", {"device.matmul.m0": 8})
    device = machine.device
    rate = device.matmul.memory_fraction * device.memory_bytes_per_s
    op = matmul(1, 16384, 16384)
    seconds = AnalyticCosts(machine).seconds(op)
    assert seconds == pytest.approx(device.matmul.launch_s + op.nbytes / rate)


@pytest.mark.parametrize("first", [True, False])
def test_attention_under_a_mask_and_without_one_are_two_times(first: bool) -> None:
    """Steps of ring attention count the same FLOPs, and half of them is left in each; under the
    mask a kernel works through the blocks on the diagonal whole, which takes longer."""
    costs, flops = AnalyticCosts(load_machine("dgx-h100")), 4 * 32 * 128 * 4096**2
    about: Attributes = {"sequence": 4096, "width": 128}
    op = Op("op", "attention", (), (), BLOCK, nbytes=2**27, flops=flops, attributes=about)
    seconds = {
        masked: costs.seconds(replace(op, attributes={**about, CAUSAL: masked}))
        for masked in (first, not first)
    }
    assert seconds[False] < seconds[True] < 1.1 * seconds[False]


@pytest.mark.parametrize("kind", ["batched_matmul", "stacked_matmul"])
def test_a_batched_matmul_takes_the_time_of_one_with_all_its_rows(kind: str) -> None:
    for costs in (AnalyticCosts(load_machine("frontier")), CalibratedCosts(PROFILE, 1, 1e9)):
        one, many = matmul(256 * 64, 2048, 128), replace(batched(64, 256, 2048, 128), kind=kind)
        assert costs.seconds(many) == pytest.approx(costs.seconds(replace(one, nbytes=many.nbytes)))


def test_the_products_of_a_grouped_matmul_are_kernels_that_want_rows_of_their_own() -> None:
    """With `grouped` rows of each expert half of the rate is left, but for what does not depend on
    it: the launch. Of a weight's gradient the rows are what it sums over."""
    plain = load_machine("dgx-h100").device
    device = replace(plain, matmul=replace(plain.matmul, grouped=512.0))
    for form, m, k in (("NN", 512, 4096), ("TN", 4096, 512)):
        attributes: Attributes = {"m": m, "n": 4096, "k": k, "form": form, "count": 8}
        op = Op(
            "op", "grouped_matmul", (), (), BLOCK, flops=16 * m * k * 4096, attributes=attributes
        )
        whole, own = matmul_s(plain, 1e15, op), matmul_s(device, 1e15, op)
        assert own - plain.matmul.launch_s == pytest.approx(2 * (whole - plain.matmul.launch_s))


def test_a_measured_batched_matmul_is_interpolated_in_its_flops_form_by_form() -> None:
    rows = ((1.0, 0.0, 1e6, 1e-4), (1.0, 0.0, 1e8, 1e-2), (1.0, 1.0, 1e6, 1.0))
    table = MeasuredTable(("ranks", "form", "flops", "seconds"), rows)
    costs = CalibratedCosts(Profile(kernels={"batched_matmul@bf16": table}), 1, 1e9)
    op = batched(8, 50, 125, 100)
    assert op.flops == 10**7
    assert costs.seconds(op) == pytest.approx(1e-3)


def test_causal_attention_does_half_of_its_square_and_backward_five_halves_of_that() -> None:
    machine = load_machine("perlmutter")
    device, peak = machine.device, machine.device.peak_flops_per_s["bf16"]
    forward = Op("f", "attention", (), (), BLOCK, flops=4 * 10**12)
    backward = Op("b", "attention_grad", (), (), BLOCK, flops=8 * 10**12)
    costs = AnalyticCosts(machine)
    assert (costs.seconds(forward) - device.launch_s) * peak * device.attention.forward == (
        pytest.approx(2e12)
    )
    assert (costs.seconds(backward) - device.launch_s) * peak * device.attention.backward == (
        pytest.approx(5e12)
    )


def test_a_step_of_many_devices_waits_for_the_slowest_to_multiply() -> None:
    """Of 100 devices the slowest has 9/10 of the mean rate; moving bytes is not affected."""
    machine = load_machine("frontier")
    device = replace(machine.device, slowest=((100.0, 0.9),))
    spread = replace(machine, device=device)
    launch_s = device.matmul.launch_s
    one, many = (AnalyticCosts(spread, devices) for devices in (1, 100))
    op = matmul(8192, 8192, 8192)
    assert many.seconds(op) - launch_s == pytest.approx((one.seconds(op) - launch_s) / 0.9)
    attention = Op("a", "attention", (), (), BLOCK, flops=4 * 10**12)
    own = device.launch_s
    assert many.seconds(attention) - own == pytest.approx((one.seconds(attention) - own) / 0.9)
    assert many.seconds(move(10**9)) == one.seconds(move(10**9))


def test_a_copy_from_or_to_the_host_goes_at_the_rate_of_its_link() -> None:
    """36 GB/s of Infinity Fabric to each GCD, 450 of NVLink-C2C, PCIe 4 at 25; or as calibrated."""
    for name, rate in (("frontier", 36e9), ("alps", 450e9), ("perlmutter", 25e9)):
        machine = load_machine(name)
        for kind in ("to_device", "to_host"):
            seconds = AnalyticCosts(machine).seconds(move(10**9, kind)) - machine.device.launch_s
            assert seconds == pytest.approx(1e9 / rate)
    for calibrated in (CalibratedCosts(PROFILE, 1, 2e9), MeasuredCosts({}, 2e9)):
        assert calibrated.seconds(move(10**9, "to_host")) == pytest.approx(0.5)


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_ranks_of_one_node_share_what_its_host_updates(kind: str) -> None:
    """8 GB/s of a node's host, of which each of 4 busy ranks has 2, calibrated or not."""
    machine = with_settings(load_machine("perlmutter"), {"node.host.update": "8 GB/s"})
    assert machine.devices_per_node == 4
    for ranks, seconds in ((1, 0.125), (4, 0.5)):
        for costs in (AnalyticCosts(machine, ranks), CalibratedCosts(PROFILE, ranks, 1e9, 8e9)):
            assert costs.seconds(move(10**9, kind)) == pytest.approx(seconds)
    assert AnalyticCosts(machine, 64).seconds(move(10**9, kind)) == pytest.approx(0.5)


def test_a_dtype_that_the_machine_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(MachineError, check=names("device.peak_flops.int3")):
        AnalyticCosts(load_machine("frontier")).seconds(matmul(8, 8, 8, dtype="int3"))


@pytest.mark.parametrize(("m", "n", "k"), [(16, 64, 16), (32, 32, 32), (20, 50, 64)])
def test_a_profile_interpolates_a_matmuls_rate_in_logarithms(m: int, n: int, k: int) -> None:
    seconds = CalibratedCosts(PROFILE, 1, 1e9).seconds(matmul(m, n, k))
    assert seconds == pytest.approx(2 * n * k / 1e9)


def test_outside_the_measured_shapes_the_rate_of_the_nearest_holds() -> None:
    costs = CalibratedCosts(PROFILE, 1, 1e9)
    assert costs.seconds(matmul(128, 64, 64)) == pytest.approx(
        2 * costs.seconds(matmul(64, 64, 64))
    )


def test_a_form_that_was_not_measured_takes_the_rate_of_one_that_was() -> None:
    costs = CalibratedCosts(PROFILE, 1, 1e9)
    assert costs.seconds(matmul(32, 32, 32, form="TN")) == costs.seconds(matmul(32, 32, 32))


def test_rows_measured_with_the_nearest_number_of_busy_ranks_count() -> None:
    alone, crowded = (
        CalibratedCosts(PROFILE, ranks, 1e9).seconds(matmul(32, 32, 32)) for ranks in (1, 8)
    )
    assert crowded == pytest.approx(4 * alone)


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [(10, 1e-6), (1000, 1e-6), (10_000, 10**-5.5), (10**6, 1e-4)]
)
def test_a_moved_size_holds_its_time_below_the_table_and_its_rate_above(
    nbytes: int, seconds: float
) -> None:
    assert CalibratedCosts(PROFILE, 1, 1e9).seconds(move(nbytes)) == pytest.approx(seconds)


def test_attention_is_interpolated_in_its_work() -> None:
    rows = ((1.0, 64.0, 2.0, 8.0, 32.0, 1e-3), (1.0, 128.0, 2.0, 8.0, 32.0, 2e-3))
    columns = ("ranks", "rows", "heads", "width", "sequence", "seconds")
    costs = CalibratedCosts(
        Profile(kernels={"attention@bf16": MeasuredTable(columns, rows)}), 1, 1e9
    )
    op = Op("op", "attention", (), (), BLOCK, flops=4 * 96 * 2 * 8 * 32)
    assert costs.seconds(op) == pytest.approx(1.5e-3)
    busiest = replace(op, flops=op.flops * 3 // 4, attributes={BUSIEST: 4 / 3})
    assert costs.seconds(busiest) == pytest.approx(1.5e-3)  # the others wait for it


def test_backward_attention_counts_twice_the_flops_for_the_same_work() -> None:
    rows = ((1.0, 64.0, 2.0, 8.0, 32.0, 1e-3), (1.0, 128.0, 2.0, 8.0, 32.0, 2e-3))
    columns = ("ranks", "rows", "heads", "width", "sequence", "seconds")
    costs = CalibratedCosts(
        Profile(kernels={"attention_grad@bf16": MeasuredTable(columns, rows)}), 1, 1e9
    )
    op = Op("op", "attention_grad", (), (), BLOCK, flops=8 * 96 * 2 * 8 * 32)
    assert costs.seconds(op) == pytest.approx(1.5e-3)


def test_of_several_measurements_of_one_size_the_fastest_counts() -> None:
    rows = ((1.0, 1e3, 3e-6), (1.0, 1e3, 1e-6), (1.0, 1e3, 2e-6), (1.0, 1e5, 1e-5))
    table = MeasuredTable(("ranks", "nbytes", "seconds"), rows)
    costs = CalibratedCosts(Profile(kernels={"gelu@bf16": table}), 1, 1e9)
    assert costs.seconds(move(1000)) == pytest.approx(1e-6)


def test_a_grid_with_a_hole_is_refused_by_the_missing_shape() -> None:
    holed = replace(MATMULS, rows=MATMULS.rows[1:8])
    with pytest.raises(MachineError, check=names("NN", "k", "16.0")):
        CalibratedCosts(Profile(kernels={"matmul@bf16": holed}), 1, 1e9)


def test_a_machine_with_a_profile_is_predicted_from_it() -> None:
    machine = load_machine("frontier")
    assert isinstance(compute_costs(machine, 8, 8), AnalyticCosts)
    assert isinstance(compute_costs(replace(machine, profile=PROFILE), 8, 8), CalibratedCosts)


def test_a_matmuls_rate_is_scaled_by_the_factor_of_its_form_alone() -> None:
    machine = with_settings("frontier", {"device.matmul.forms.TN": "0.25"})
    costs, launch_s = AnalyticCosts(machine), machine.device.matmul.launch_s
    plain, other, slow = (
        costs.seconds(matmul(8192, 8192, 8192, form)) - launch_s for form in ("NN", "NT", "TN")
    )
    assert other == plain
    assert slow == pytest.approx(4 * plain)


@pytest.mark.parametrize(
    ("machine", "width", "dtype", "share"),
    [
        ("perlmutter", 100, "fp16", 78 / 312),
        ("perlmutter", 100, "bf16", 39 / 312),
        ("perlmutter", 104, "bf16", 1.0),
        ("perlmutter", 100, "fp32", 1.0),  # nothing there is loaded 16 bytes at once
        ("dgx-h100", 100, "bf16", 0.8),
    ],
)
def test_heads_of_a_width_no_multiple_of_eight_are_multiplied_without_matrix_cores(
    machine: str, width: int, dtype: str, share: float
) -> None:
    device = load_machine(machine).device
    op = replace(batched(64, 2048, 2048, width), dtype=dtype, nbytes=0)
    op = replace(op, attributes={**op.attributes, "form": "NT"})
    smooth = replace(device, vector_flops_per_s={}, matmul=replace(device.matmul, unaligned={}))
    peak, launch_s = device.peak_flops_per_s[dtype], device.matmul.launch_s
    aligned_s = matmul_s(smooth, peak, op) - launch_s
    assert matmul_s(device, peak, op) == pytest.approx(launch_s + aligned_s / share)


def test_what_moves_rows_by_masks_takes_the_time_of_what_was_measured_of_so_many_bytes() -> None:
    measured = dict.fromkeys(("add@bf16", "sum_rows@bf16", "take_rows@bf16"), MOVES)
    costs = CalibratedCosts(Profile(kernels=measured | {"put_scores@bf16": MOVES}), 1, 1e9)
    masks = ("one_hot_places", "weigh_places", "is_nonzero", "cast", "scores_of_places")
    for kind in (*masks, "sum_weighted_rows", "take_weighted_rows", "score_rows"):
        assert costs.seconds(move(10_000, kind)) == costs.seconds(move(10_000, "add"))
